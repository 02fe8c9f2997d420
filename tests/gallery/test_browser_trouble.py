"""The page where something is missing or goes wrong: JavaScript, a picture that is one, the server, a token."""

from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from tests.browser import contrasts, too_small, too_wide, unnamed, visit
from tests.gallery.live import LIMITS, asked, hits, site_of
from tests.gallery.samples import TOKEN

QUERY = "red/4.png"


def test_it_works_without_javascript(browser, two):
    with visit(browser, two.of(item=QUERY), java_script_enabled=False) as seen:
        page = seen.page
        assert len(hits(page, 1)) == 24
        with page.expect_navigation():
            page.locator(".hit a").first.click()
        assert page.url.startswith(f"{two.url}/?item=")
        page.get_by_label("Category").select_option("coloured (27)")
        page.get_by_label("Filter", exact=True).fill("label!=blue")
        with page.expect_navigation():
            page.get_by_role("button", name="Apply").click()
        assert {name.split("/")[0] for name in hits(page, 1)} == {"red", "green"}
        page.set_input_files("input[type=file]", two.folder / QUERY)
        with page.expect_navigation():
            page.get_by_role("button", name="Search with it").click()
        assert page.url.startswith(f"{two.url}/?upload=")
        assert hits(page, 1)[0] == QUERY
        assert {name.split("/")[0] for name in hits(page, 1)} == {"red", "green"}  # the filters stay
        assert page.get_by_role("button", name="Copy link").count() == 0  # nothing is there that would not work
        page.goto(f"{two.url}/hardest?index=colours")
        while page.locator("[data-poll]").count():
            with page.expect_navigation():
                page.get_by_role("link", name="Look again").click()
        assert page.locator(".ap-value").count() == 36
        assert seen.errors == []


@pytest.fixture
def asking(browser, one):
    """A page with results, to which something then happens; they must still be there."""
    with visit(browser, one.of(item=QUERY)) as seen:
        before = hits(seen.page)
        yield seen.page
        assert hits(seen.page) == before
        assert seen.page.url == one.of(item=QUERY)


def test_what_is_no_picture_is_refused_in_a_line(asking):
    box = asking.locator("#main").bounding_box()
    asking.set_input_files("input[type=file]", {"name": "a.png", "mimeType": "image/png", "buffer": b"just text"})
    line = asking.get_by_role("alert")
    line.get_by_text("is no image").wait_for()
    assert "\n" not in line.locator("p").inner_text()
    assert asking.locator("#main").bounding_box() == box  # nothing moves
    asking.keyboard.press("Escape")
    assert line.is_hidden()


def test_a_file_that_is_too_large_is_not_even_sent(asking):
    sent = []
    asking.on("request", lambda request: sent.append(request.url))
    large = {"name": "a.png", "mimeType": "image/png", "buffer": bytes(LIMITS.upload_bytes + 1)}
    asking.set_input_files("input[type=file]", large)
    asking.get_by_role("alert").get_by_text("This file is too large: at most 0.1 MB can be sent.").wait_for()
    assert sent == []
    asking.get_by_role("button", name="Close this message").click()
    assert asking.get_by_role("alert").is_hidden()


def test_who_closes_a_message_stays_on_the_page(asking):
    asking.set_input_files("input[type=file]", {"name": "a.png", "mimeType": "image/png", "buffer": b"just text"})
    close = asking.get_by_role("button", name="Close this message")
    close.focus()
    asking.keyboard.press("Enter")
    close.wait_for(state="hidden")
    assert asking.evaluate("document.activeElement.id") == "main"


def test_progress_goes_on_after_a_request_that_failed(browser, one):
    with visit(browser, "about:blank") as seen:
        page, polls = seen.page, []
        running = '<body><main id="main"><div data-poll><h1>{}</h1></div></main><nav id="ways"></nav></body>'

        def hardest(route):
            if route.request.resource_type == "document":
                answer = route.fetch()
                text = answer.text().replace('<div class="hero"', '<div class="hero" data-poll')
                route.fulfill(response=answer, body=text)
            else:
                polls.append(route.request.url)
                route.fulfill(content_type="text/html", body=running.format(f"poll {len(polls)}"))

        page.route("**/hardest", hardest)
        page.route("**/hardest?*", lambda route: route.abort())
        page.goto(f"{one.url}/hardest")
        page.evaluate("""() => {
            const link = Object.assign(document.createElement("a"), { href: "/hardest?index=none" });
            link.dataset.swap = "";
            document.getElementById("main").append(link);
            link.click();
        }""")
        page.get_by_role("alert").get_by_text("The server did not answer.").wait_for()
        page.get_by_role("heading", name="poll 1").wait_for()


def test_who_is_signed_out_meanwhile_can_sign_in(browser, pictures):
    with site_of(*pictures, "colours", token=TOKEN) as site, visit(browser, site.of(item=QUERY)) as seen:
        page = seen.page
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(site.of(item=QUERY))
        page.context.clear_cookies()
        page.set_input_files("input[type=file]", site.folder / QUERY)
        line = page.get_by_role("alert")
        line.get_by_text("You are signed out.").wait_for()
        line.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{site.url}/login?next=*")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(site.of(item=QUERY))


def test_a_filter_that_cannot_be_read(asking):
    asking.get_by_label("Filter", exact=True).fill("nonsense")
    asking.keyboard.press("Enter")
    asking.get_by_role("alert").get_by_text("filter").wait_for()
    assert asking.get_by_label("Filter", exact=True).input_value() == "nonsense"  # to be mended


def test_a_server_that_stops_and_comes_back(browser, pictures):
    with ExitStack() as first:
        site = first.enter_context(site_of(*pictures, "colours"))
        with visit(browser, site.url) as seen:
            page, line = seen.page, seen.page.get_by_role("alert")
            page.set_input_files("input[type=file]", site.folder / QUERY)
            page.wait_for_url("**/?upload=*")
            before, url = hits(page), page.url
            first.close()
            page.get_by_label("Query expansion").select_option("on")
            line.get_by_text("The server did not answer. Is it still running?").wait_for()
            assert (hits(page), page.url) == (before, url)
            with site_of(*pictures, "colours", port=urlsplit(site.url).port):
                line.get_by_role("button", name="Try again").click()
                line.get_by_text("The server has forgotten this picture.").wait_for()
                assert (hits(page), page.url) == (before, url)
                line.get_by_role("button", name="Send it again").click()
                page.wait_for_url(asked(expand=["on"]))
                assert hits(page)[0] == QUERY
                assert line.is_hidden()


def test_who_has_no_token_signs_in_first(browser, pictures):
    with site_of(*pictures, "colours", token=TOKEN) as site, visit(browser, site.of(item=QUERY)) as seen:
        page = seen.page
        assert page.url.startswith(f"{site.url}/login?next=")
        assert unnamed(page) == []
        assert page.evaluate("document.activeElement.name") == "token"
        page.keyboard.type("not-the-token")
        page.keyboard.press("Enter")
        page.get_by_text("That is not the token.").wait_for()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert [one for one in contrasts(page) if one[0] < one[1]] == []
        page.set_viewport_size({"width": 390, "height": 800})
        assert (too_wide(page), too_small(page)) == ([], [])
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(site.of(item=QUERY))
        assert len(hits(page)) == 24
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url(f"{site.url}/login")
        page.goto(site.of(item=QUERY))
        assert page.url.startswith(f"{site.url}/login?next=")
