"""The page in a headless browser, against a real service: compose, follow, cancel, look, compare, save."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser import PATIENCE, Watched, watched
from playwright.sync_api import expect
from servers import LiveService, serving

from factorize.api.access.caller import read_token
from factorize.api.access.key_register import KeyRequest
from factorize.format.labels import name_schedule
from factorize.workloads.schedule import Cosine, CosineToLast, LinearCooldown, Step, WarmupCosine, explicit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = {"workload": {"kind": "prefix", "n": 24}, "mechanism": {"kind": "square_root"}}
PAGES = "compose results recommend recommend/fleet compare key documentation nothing".split()
NAMED_SCHEDULES = [
    (Cosine(kind="cosine"), "cosine"),
    (Cosine(kind="cosine", final=0.1), "cosine(final=0.1)"),
    (CosineToLast(kind="cosine_to_last"), "cosine_to_last"),
    (WarmupCosine(kind="warmup_cosine", warmup=4, final=0.05), "warmup_cosine(warmup=4, final=0.05)"),
    (LinearCooldown(kind="linear_cooldown", steps=10), "linear_cooldown(steps=10)"),
    (Step(kind="step", every=8, factor=0.5), "step(every=8, factor=0.5)"),
]
PHONE = {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark"}


@pytest.fixture
def view(browser: Browser, live_service: LiveService) -> Iterator[Watched]:
    with watched(browser, live_service.url, viewport={"width": 1200, "height": 900}) as found:
        yield found


@pytest.fixture(scope="module")
def root(live_service: LiveService) -> dict[str, Any]:
    """A stored result whose C has the coefficients 1, 1/2, 3/8 and so on."""
    return live_service.solve(ROOT)


def test_a_spec_is_composed_solved_and_cancelled(browser: Browser, slow_service: LiveService) -> None:
    with watched(browser, slow_service.url) as view:
        page = view.page
        view.go("compose")
        page.get_by_label("kind of mechanism").select_option("nu_toeplitz")
        page.get_by_label("nu", exact=True).fill("0.25")
        page.get_by_label("kind of participation").select_option("single")
        page.get_by_label("n", exact=True).fill("12")
        asked = {"workload": {"kind": "prefix", "n": 12}, "mechanism": {"kind": "nu_toeplitz", "nu": 0.25}}
        digest = slow_service.spec_digest(asked)
        page.wait_for_selector(f"text={digest}")
        assert page.get_by_text("no, it has to be solved").is_visible()
        page.get_by_role("button", name="Solve").click()
        page.wait_for_selector("svg .line")
        assert "relative gap" in page.locator("main svg").first.text_content()
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Try again").click()
        page.wait_for_selector("svg .line")
        slow_service.go()
        page.get_by_role("heading", name="Certificate").wait_for()
        assert slow_service.get(f"/v1/factorizations/{digest}").json()["digest"] in page.content()


def test_a_page_waits_for_a_service_that_has_gone_away(browser: Browser, slow_service: LiveService) -> None:
    cut = {"content_type": "text/event-stream", "body": 'event: state\ndata: {"state": "running"}\n\n'}
    answers = iter([lambda route: route.fulfill(**cut), lambda route: route.abort()])
    digest = slow_service.post(ROOT).json()["spec_digest"]
    with watched(browser, slow_service.url) as view:
        view.page.route("**/events", lambda route: next(answers, lambda route: route.continue_())(route))
        view.go(f"f/{digest}")
        view.page.wait_for_selector("main >> text=This page asks again")
        view.page.wait_for_selector("svg .line")
        slow_service.go()
        view.page.get_by_role("heading", name="Certificate").wait_for()


def test_schedules_keep_their_names(view: Watched) -> None:
    view.go("recommend")
    lists = [explicit(asked, 40) for asked, _ in NAMED_SCHEDULES] + [[0.5, 1.0, 0.25, 0.0, 0.0], [1.0] * 9]
    named = "rates => import('/page/formats.js').then(module => rates.map(module.schedule))"
    assert view.page.evaluate(named, lists) == [*(name for _, name in NAMED_SCHEDULES), None, None]
    assert [name_schedule(rates) for rates in lists] == [*(name for _, name in NAMED_SCHEDULES), None, None]


def test_a_sigma_and_a_sensitivity_in_fewer_digits_are_no_smaller(view: Watched) -> None:
    view.go("recommend")
    shown = "values => import('/page/formats.js').then(module => values.map(value => module.enough(value, 5)))"
    values = [1.00001, 2.00255001, 0.99999999, 3.0, 1.23451e-7, 98765.4321]
    assert view.page.evaluate(shown, values) == ["1.0001", "2.0026", "1", "3", "1.2346e-7", "98766"]
    stated = {"value": 2.000001, "kind": "exact", "rule": "column norms", "participation": {"kind": "single"}}
    certificate = {
        **{
            "sensitivity": stated,
            "loss": {"rmse": None, "objective": 3.0},
            "residual": {"max_abs": 0.0},
            "converged": True,
        },
        **{"lower_bound": {"objective": 1.999999999, "rule": "dual"}, "class_lower_bound": None, "relative_gap": 0.5},
    }
    spec = {"objective": {"kind": "mean"}, "mechanism": {"kind": "dense"}, "tolerance": 0.5}
    told = "both => import('/page/certificate.js').then(module => module.sentences(...both))"
    sentences = view.page.evaluate(told, [certificate, spec])
    assert "by at most 2.00001 times the clip norm" in sentences[0] and "below 1.9999999 (" in sentences[2]
    endless = {**certificate, "lower_bound": None, "loss": {"rmse": None, "objective": None}}
    assert not [text for text in view.page.evaluate(told, [endless, spec]) if "unknown" in text]


def test_what_is_wrong_stands_at_its_field(view: Watched) -> None:
    view.go("compose")
    view.page.wait_for_selector("text=; the page Recommend finds a mechanism")
    field = view.page.get_by_label("n", exact=True)
    field.fill("0")
    view.page.wait_for_selector("[aria-invalid=true]")
    told = view.page.locator(f"#{field.get_attribute('aria-describedby').split()[-1]}")
    assert "greater than or equal to 1" in told.text_content()
    expect(view.page.get_by_role("button", name="Solve")).to_be_disabled(timeout=PATIENCE)
    field.fill("8e0")
    view.page.get_by_label("epochs", exact=True).fill("4")
    view.page.wait_for_selector("text=spec digest")
    assert view.page.locator("[aria-invalid=true]").count() == 0


def test_every_kind_of_the_schema_can_be_composed(view: Watched, live_service: LiveService) -> None:
    view.go("compose")
    schemas = live_service.get("/openapi.json").json()["components"]["schemas"]
    for name in ("workload", "participation", "objective", "mechanism"):
        control = view.page.get_by_label(f"kind of {name}")
        offered = control.locator("option").all_text_contents()
        assert sorted(offered) == sorted(schemas["Spec"]["properties"][name]["discriminator"]["mapping"])
    spec = {
        "workload": {"kind": "momentum", "n": 8, "momentum": 0.5, "learning_rates": {"kind": "cosine", "final": 0.1}},
        "participation": {"kind": "fixed_epochs", "epochs": 2},
        "objective": {"kind": "weighted", "weights": [1, 2, 3, 4, 5, 6, 7, 8]},
        "mechanism": {"kind": "banded_toeplitz", "bands": 3, "normalization": "none"},
        "optimize_for": {"kind": "matrix", "rows": [[1.5] * (i + 1) + [0] * (7 - i) for i in range(8)]},
    }
    view.page.get_by_text("As JSON").click()
    text = view.page.get_by_label("The spec as JSON")
    text.fill(json.dumps({**spec, "particpation": spec["participation"]}))
    view.page.get_by_role("button", name="Read the form from it").click()
    expect(view.page.get_by_role("status").last).to_contain_text("unknown field 'particpation'", timeout=PATIENCE)
    text.fill(json.dumps(spec))
    view.page.get_by_role("button", name="Read the form from it").click()
    expect(view.page.get_by_label("bands")).to_have_value("3", timeout=PATIENCE)
    text.fill("")
    view.page.get_by_role("button", name="Write the form into it").click()
    assert json.loads(text.input_value()) == spec


def test_the_heatmap_has_the_colours_of_the_matrix(view: Watched, root: dict[str, Any]) -> None:
    view.go(f"f/{root['digest']}")
    pixels = view.pixels()
    assert (len(pixels), len(pixels[0])) == (24, 24)
    for i in range(24):
        assert pixels[i][i] == [253, 231, 37, 255]  # the diagonal is the largest
        assert all(pixels[i][j][3] == 40 for j in range(i + 1, 24))  # nothing is above it
        assert all(pixels[i][j] == pixels[i - 1][j - 1] for j in range(1, i + 1))  # Toeplitz
    greens = [row[0][1] for row in pixels]  # from yellow to violet as the coefficients fall
    assert greens == sorted(greens, reverse=True) and greens[-1] < 40
    canvas = view.page.locator("canvas[data-state]")
    canvas.focus()
    canvas.press("+")
    view.page.wait_for_selector('canvas[aria-label="Heatmap of C, rows 5 to 20, columns 5 to 20"]')
    canvas.press("ArrowUp")
    view.page.wait_for_selector('canvas[aria-label="Heatmap of C, rows 1 to 16, columns 5 to 20"]')
    assert len(view.pixels()) == 16
    view.page.get_by_role("button", name="C^-1", exact=True).click()
    view.page.wait_for_selector('canvas[aria-label="Heatmap of C^-1, rows 1 to 24, columns 1 to 24"]')
    inverse = view.pixels()
    assert inverse[1][0][2] > inverse[1][0][0] and inverse[1][1][0] > inverse[1][1][2]  # -1/2 is blue, 1 is red


def test_a_result_states_sigma_and_gives_its_file(
    view: Watched, root: dict[str, Any], live_service: LiveService
) -> None:
    view.go(f"f/{root['digest']}")
    page = view.page
    page.get_by_role("button", name="Compute sigma").click()
    page.wait_for_selector("text=The standard deviation of each entry")
    answer = live_service.send(
        "POST", f"/v1/factorizations/{root['digest']}/calibrations", {"epsilon": 2, "delta": 1e-6}
    ).json()
    assert float(page.locator("p strong").first.text_content()) == pytest.approx(answer["sigma_of_sums"], rel=1e-7)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download C").click()
    assert hashlib.sha256(Path(download.value.path()).read_bytes()).hexdigest() == root["files"][0]["sha256"]
    bound = root["certificate"]["lower_bound"]["objective"]
    page.wait_for_selector("text=lower bound on any matrix's root mean square")
    shown = re.search(r"root mean square: ([\d.]+)", page.locator(".legend li", has_text="lower bound").text_content())
    assert shown and float(shown[1]) == pytest.approx(bound**0.5, rel=1e-5)
    page.get_by_role("heading", name="Noise over time and frequency").wait_for()
    page.wait_for_selector("text=Power over frequency")
    expect(page.get_by_text("rho", exact=True)).to_be_hidden()
    page.route("**/*dtype=float32", lambda route: route.abort())
    page.get_by_role("button", name="C in float32").click()
    expect(page.get_by_text("The service does not answer")).to_be_in_viewport(ratio=1, timeout=PATIENCE)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    with serving(tmp_path_factory.mktemp("keyed") / "store", solver="no_solver", require_keys=True) as live:
        yield live


def use_key(view: Watched, token: str) -> None:
    view.go("key")
    view.page.get_by_label("API key").fill(token)
    view.page.get_by_role("button", name="Use this key").click()
    view.page.wait_for_selector("text=A key is set.")


def test_the_page_says_that_a_key_is_needed_and_takes_one(browser: Browser, keyed: LiveService) -> None:
    token = keyed.service.register.create(KeyRequest(name="page", scopes=["read"]))[1].text
    with watched(browser, keyed.url) as view:
        view.go("results")
        view.page.wait_for_selector("text=This service needs a key. Set a key under Key.")
        view.go("key")
        view.page.get_by_label("API key").fill(f"\u201c{token}\u201d")
        view.page.get_by_role("button", name="Use this key").click()
        view.page.wait_for_selector("text=A key has no spaces, quotation marks")
        use_key(view, "fk_1")
        assert "no such key" in view.page.get_by_role("alert").text_content()
        assert view.page.locator("h1").count() == 1
        use_key(view, token)
        view.go("results")
        view.page.wait_for_selector("text=Nothing here.")
        expect(view.page.get_by_role("link", name="Keys of callers")).to_be_hidden()
        view.go("keys")
        assert "does not have the scope admin" in view.page.get_by_role("alert").text_content()
        assert not [address for address, _ in view.requests if token in address]


@pytest.mark.parametrize("options", [{"color_scheme": "light"}, PHONE], ids=["light", "dark phone"])
def test_admins_look_after_keys(browser: Browser, keyed: LiveService, options: dict[str, Any]) -> None:
    register = keyed.service.register
    own, token = register.create(KeyRequest(name="mine", scopes=["admin"]))
    with watched(browser, keyed.url, **options) as view:
        page = view.page
        use_key(view, token.text)
        page.get_by_role("link", name="Keys of callers").click()
        page.get_by_label("name", exact=True).fill("evaluation")
        page.get_by_label("days", exact=True).fill("0")
        page.get_by_label("submit", exact=True).check()
        page.get_by_role("button", name="Make a key").click()
        page.wait_for_selector("[aria-invalid=true]")
        page.get_by_label("days", exact=True).fill("30")
        page.get_by_role("button", name="Make a key").click()
        shown = page.get_by_label("Token", exact=True)
        made = read_token(shown.text_content())
        assert made is not None
        key = register.get(made.id)
        assert made.is_of(key.secret_sha256) and key.scopes == {"read", "submit"} and key.name == "evaluation"
        page.get_by_role("button", name=f"Revoke evaluation {made.id}").wait_for()
        assert view.barriers() == []
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert page.get_by_role("button", name=f"Revoke mine {own.id}").count() == 0

        revoke = page.get_by_role("button", name=f"Revoke evaluation {made.id}")
        revoke.focus()
        revoke.press("Enter")
        page.wait_for_selector("dialog[open]")
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog", state="detached")
        assert register.get(made.id).revoked is None
        revoke.press("Enter")
        page.keyboard.press("Enter")  # the first button has the focus
        page.wait_for_selector(f"text=Key {made.id} is revoked.")
        assert register.get(made.id).revoked is not None
        page.get_by_label("state", exact=True).select_option("revoked")
        expect(page.locator("tbody tr", has_text=made.id)).to_have_count(1, timeout=PATIENCE)
        view.go("results")
        assert "fk_" not in page.content()
        assert not [address for address, _ in view.requests if "fk_" in address]


def test_a_key_goes_into_a_header_and_nowhere_else(view: Watched, root: dict[str, Any]) -> None:
    view.go("key")
    view.page.get_by_label("API key").fill("fz_secret")
    view.page.get_by_role("button", name="Use this key").click()
    view.page.wait_for_selector("text=A key is set.")
    view.requests.clear()
    view.go(f"f/{root['digest']}")
    view.pixels()
    with view.page.expect_download() as download:
        view.page.get_by_role("button", name="Download C").click()
    assert hashlib.sha256(Path(download.value.path()).read_bytes()).hexdigest() == root["files"][0]["sha256"]
    asked = [(address, headers) for address, headers in view.requests if "/v1/" in address]
    assert asked and all(headers.get("authorization") == "Bearer fz_secret" for _, headers in asked)
    assert not [address for address, _ in view.requests if "secret" in address]
    assert view.page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    view.go("key")
    view.page.get_by_role("button", name="Forget it").click()
    view.page.wait_for_selector("text=No key is set.")


def test_the_list_tells_rows_apart_and_filters(view: Watched, live_service: LiveService) -> None:
    for bands in (2, 3, 4):
        live_service.solve({**ROOT, "mechanism": {"kind": "banded_square_root", "bands": bands}})
    view.go("results")
    view.page.wait_for_selector("tbody tr")
    texts = view.page.locator("tbody tr td:first-child").all_text_contents()
    assert len(set(texts)) == len(texts)
    assert [text for text in texts[:3] if "bands=" in text and "banded_square_root" in text] == texts[:3]
    search = view.page.get_by_label("search", exact=True)
    for words in ("bands=3 prefix", "PREFIX(n=24), banded_square_root(bands=3)"):
        search.fill(words)
        search.press("Enter")
        expect(view.page.locator("tbody tr")).to_have_count(1, timeout=PATIENCE)
        search.fill("")
        search.press("Enter")
        expect(view.page.locator("tbody tr")).not_to_have_count(1, timeout=PATIENCE)
    digest = live_service.solve({**ROOT, "mechanism": {"kind": "banded_square_root", "bands": 3}})["digest"]
    search.fill(digest[:12])
    search.press("Enter")
    expect(view.page.locator("tbody code")).to_have_text([digest], timeout=PATIENCE)
    search.fill("")
    search.press("Enter")
    view.page.get_by_label("state", exact=True).select_option("failed")
    view.page.wait_for_selector("text=Nothing here.")


def test_mechanisms_are_compared(view: Watched) -> None:
    view.go("compare")
    view.page.get_by_label("n", exact=True).fill("4")
    view.page.get_by_label("kind of participation").select_option("single")
    if not view.page.get_by_label("max seconds").is_visible():
        view.page.get_by_text("More fields").click()
    view.page.get_by_label("max seconds").fill("0.5")
    view.page.get_by_role("button", name="Compare").click()
    view.page.wait_for_selector("text=Recommended:")
    assert view.page.get_by_role("status").filter(has_text="below").is_visible()  # beside the button
    assert view.page.locator("svg .bar").count() == view.page.locator("tbody tr").count() > 1
    view.page.get_by_role("button", name="Use its spec").first.click()
    view.page.wait_for_selector("text=What will be solved")
    view.page.wait_for_selector("text=spec digest")


def test_one_mechanism_is_recommended_and_solved(view: Watched) -> None:
    page = view.page
    view.go("recommend")
    for name, text in {"examples": "6", "batch size": "2", "seconds": "0.5"}.items():
        if not page.get_by_label(name, exact=True).is_visible():
            page.get_by_text("More fields").click()
        page.get_by_label(name, exact=True).fill(text)
    for sampling in ("cyclic_poisson", "balls_in_bins", "poisson", "random_allocation"):
        page.get_by_label(sampling, exact=True).uncheck()
    page.get_by_role("button", name="Recommend").click()
    solve = page.get_by_role("button", name="Solve this")
    solve.wait_for()
    assert view.barriers() == []
    assert "noise.add_to_sum" in page.get_by_label("Code for numpy", exact=True).text_content()
    assert page.locator("dt", has_text="sigma of sums").count() == 1
    assert page.locator("svg .bar.strong").count() == 2  # beside others, and among all
    assert page.locator("tbody tr.strong").count() == 1
    digest = page.locator("dd .digest").text_content()
    solve.click()
    page.get_by_role("heading", name="Certificate").wait_for()
    assert page.url.endswith(f"#/f/{digest}")
    title = page.locator("main h1").text_content()
    assert title.startswith("prefix(n=3), single, lambda_tau(tau=3), ") and page.title() == f"{title} · factorize"


def test_a_fleet_is_described_in_a_form_of_its_own(view: Watched) -> None:
    page = view.page
    view.go("recommend")
    page.get_by_role("link", name="Federated training?").click()
    for name, text in {"clients": "18", "clients a round": "6", "rounds": "6", "delta": "0.01"}.items():
        page.get_by_label(name, exact=True).fill(text)
    page.get_by_role("button", name="Recommend").click()
    code = page.get_by_label("Code for the server", exact=True)
    code.wait_for()
    assert "clients=18, clients_a_round=6" in code.text_content() and view.barriers() == []
    assert "at least 3 apart" in page.locator("dd").all_text_contents()[1]


@pytest.mark.parametrize("options", [{"color_scheme": "light"}, PHONE], ids=["light", "dark phone"])
def test_nobody_is_kept_out(browser: Browser, live_service: LiveService, root: dict[str, Any], options) -> None:
    with watched(browser, live_service.url, **options) as view:
        for name in (f"f/{root['digest']}", *PAGES):
            view.go(name)
            view.page.wait_for_load_state("networkidle")
            assert view.barriers() == [], name
            width = view.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert width <= 0, name


def test_an_unknown_digest_is_said(view: Watched) -> None:
    view.go(f"f/{'0' * 64}")
    assert "0" * 64 in view.page.get_by_role("alert").text_content()
