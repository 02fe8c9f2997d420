"""How much of a model is trained: its head, its last blocks, or all of it; low-rank updates; layers by depth."""

import re
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from frontrank.checks import check_integer, import_extra
from frontrank.errors import InputError
from frontrank.models.backbone import first_line, module_mode

_BASE = ".base_layer."  # the part of a name that peft adds to a layer with a low-rank update


class ParameterCount(NamedTuple):
    """Numbers of parameters of a model, of those that its result depends on."""

    trained: int
    total: int

    def __str__(self) -> str:
        return f"{self.trained:,} of {self.total:,} parameters are trained ({self.trained / max(1, self.total):.1%})"


def count_parameters(model: nn.Module) -> ParameterCount:
    """Return how many parameters are trained, and how many there are; layers behind the stage of a model do not count.

    >>> print(count_parameters(nn.Linear(3, 2)))
    8 of 8 parameters are trained (100.0%)
    """
    unused = getattr(model, "unused_parameters", ())
    sizes = [(p.numel(), p.requires_grad) for name, p in model.named_parameters() if name not in unused]
    return ParameterCount(sum(size for size, trained in sizes if trained), sum(size for size, _ in sizes))


def prepare_training(model: Any, train: str = "all", lora: int = 0, checkpointing: bool = False) -> None:
    """Choose which parameters of an `Embedder` are trained.

    train: "head", everything after the backbone; "last:N", also the last N blocks of a transformer or stages of a
        convolutional network, and the norm after them; "all"
    lora: rank of the low-rank updates (LoRA, by peft) that are trained in place of the layers of these blocks; 0 trains
        the layers themselves
    checkpointing: compute activations again in the backward pass, which takes time and saves memory
    """
    check_train(train)
    check_integer("lora", lora, at_least=0)
    if train == "head" and lora:
        raise InputError("model.lora changes blocks, and model.train head trains none; give last:N or all")
    blocks = _block_numbers(model.backbone)
    own = {name: p for name, p in model.backbone.named_parameters() if p.requires_grad}
    count = max((blocks[name] for name in own), default=0)
    first = 0
    if train.startswith("last:"):
        wanted = int(train.removeprefix("last:"))
        if wanted > count:
            text = f"model.train {train}: {model.settings.backbone} has {count} blocks or stages that are used"
            raise InputError(f"{text}; give last:1 to last:{count}, or all")
        first = count - wanted + 1
    elif train == "head":
        first = count + 1
    for name, parameter in own.items():
        parameter.requires_grad_(blocks[name] >= first)
    if lora:
        _add_lora(model, lora, {name for name in own if blocks[name] >= max(1, first)})
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError("model.train head leaves nothing to train, as model.dim is 0; give a dim, last:N or all")
    if checkpointing:
        try:
            model.backbone.set_grad_checkpointing(True)
        except (AttributeError, AssertionError, NotImplementedError) as error:
            text = f"model.checkpointing: {model.settings.backbone} cannot do this ({first_line(error)})"
            raise InputError(f"{text}; leave it out, and set batches.chunk to save memory") from error
    model.train(model.training)  # statistics of parts that are not trained stay as they are


def check_train(train: str) -> None:
    """Raise if a text does not say how much of a model is trained."""
    if not isinstance(train, str) or not re.fullmatch(r"head|all|last:[1-9]\d{0,3}", train):
        raise InputError(f"model.train must be head, last:N (such as last:2) or all, got {train!r}")


def block_depths(model: Any) -> dict[str, int]:
    """Return how many blocks follow the one of each parameter of an embedder's backbone, by name.

    Blocks are those of a transformer, or of all stages of a convolutional network; the norm after the last has depth 0.
    """
    numbers = _block_numbers(model.backbone, coarse=False)
    last = max(numbers.values(), default=0)
    return {f"backbone.{name}": last - number for name, number in numbers.items()}


def _block_numbers(backbone: Any, coarse: bool = True) -> dict[str, int]:
    """Return the number of each parameter's block, from 1; 0 is what comes before. What comes after is of the last."""
    from timm.models._manipulate import group_with_matcher

    names = [name for name, _ in backbone.named_parameters()]
    if not hasattr(backbone, "group_matcher"):
        return dict.fromkeys(names, 1)
    matcher = backbone.group_matcher(coarse=coarse)
    groups: dict[int, list[str]] = group_with_matcher(((name, name) for name in names), matcher)
    numbers = {name: number for number, members in groups.items() for name in members}
    unmatched = group_with_matcher(((name, name) for name in [*names, "no such layer"]), matcher)
    after = next(set(members) for members in unmatched.values() if "no such layer" in members)
    last = max((number for name, number in numbers.items() if name not in after), default=1)
    return {name: last if name in after else number for name, number in numbers.items()}


# Low-rank updates


def _add_lora(model: Any, rank: int, names: set[str]) -> None:
    """Freeze the backbone, and add low-rank updates to those of the layers of these parameters that are called."""
    layers: dict[str, nn.Module] = {
        name: layer
        for name, layer in model.backbone.named_modules()
        if f"{name}.weight" in names
        and (isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.groups == 1))
    }
    called = _called_layers(model, layers)
    if not called:
        raise InputError(f"model.lora: {model.settings.backbone} has no layers for it there; leave it out")
    peft = import_extra("peft", "lora", "model.lora")
    for parameter in model.backbone.parameters():
        parameter.requires_grad_(False)
    pattern = "|".join(map(re.escape, called))
    config = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=f"^({pattern})$")
    peft.inject_adapter_in_model(config, model.backbone)


def _called_layers(model: Any, layers: dict[str, nn.Module]) -> list[str]:
    """Return the layers that run as modules; timm reads the weights of a few others itself."""
    called: list[str] = []
    hooks = [layer.register_forward_hook(lambda *_, name=name: called.append(name)) for name, layer in layers.items()]
    try:
        weight = next(model.parameters())
        with module_mode(model), torch.no_grad():
            model(torch.zeros(1, 3, model.image_size, model.image_size, device=weight.device))
    finally:
        for hook in hooks:
            hook.remove()
    return list(dict.fromkeys(called))


def plain_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a model by name; low-rank updates are added to the weights of their layers."""
    state = model.state_dict()
    updates = {name: layer for name, layer in model.named_modules() if f"{name}.base_layer.weight" in state}
    if not updates:
        return state
    plain = {}
    for name, tensor in state.items():
        layer = next((each for each in updates if name.startswith(f"{each}.")), None)
        if layer is None:
            plain[name] = tensor
        elif _BASE in name:
            kind = name.rpartition(".")[2]
            module: Any = updates[layer]
            delta = module.get_delta_weight("default").detach() if kind == "weight" else 0
            plain[f"{layer}.{kind}"] = tensor + delta
    return plain
