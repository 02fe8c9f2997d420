"""Results of comparisons that were never run, for what studies tell of them."""


def entry(settings, mean, spread=0.0, metrics=("mAP", "R@1"), **more):
    """An entry with three seeds around a mean."""
    values = [mean - spread, mean, mean + spread]
    return {
        "name": ", ".join(f"{key}={value}" for key, value in settings.items()),
        "settings": settings,
        "lr": 3e-4,
        "seeds": [0, 1, 2],
        "planned": 3,
        "values": dict.fromkeys(metrics, values),
        "seconds": [0.3] * 3,
        "megabytes": [400.0] * 3,
        **more,
    }


def failed(settings):
    return {**entry(settings, 0.0), "values": {}, "failed": "the gradient is not finite"}


def over(setting, means, **others):
    """The entries of an axis: value of the setting, mean."""
    shared = {key.replace("_", ".", 1): value for key, value in others.items()}
    return [entry({setting: value, **shared}, mean, 0.002) for value, mean in means.items()]
