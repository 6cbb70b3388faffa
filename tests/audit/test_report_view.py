"""What the report shows in a real browser: filters, sorting, heat maps, hostile text, 50,000 pairs."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.report_pages import (
    FINGERPRINT,
    NASTY,
    PageOpener,
    decisions,
    grey,
    press,
    selected,
    shown_ranks,
    text,
    words_of,
)
from PIL import Image

from pmpguard.audit.report import write_report
from pmpguard.audit.rows import AuditRow, AuditSummary, Proposal, WordVerdict


def test_filters_and_their_count(open_page, small_report):
    page = open_page(small_report)

    def after(act: str, *values: Any) -> list[int]:
        getattr(page, act)(*values)
        page.wait_for_timeout(170 if values[0] == "#text" else 30)  # typing is waited for
        ranks = shown_ranks(page)
        assert text(page, "#count") == ("18 pairs" if len(ranks) == 18 else f"{len(ranks)} of 18 pairs")
        return ranks

    assert after("check", "#flagged") == [1, 2, 3, 4]
    assert after("click", "#clear") == list(range(1, 19))
    assert after("check", "#red") == list(range(1, 13))
    assert after("check", "#flagged") == [1, 2, 3, 4]
    assert after("select_option", "#split", "0") == [1, 3]
    assert after("click", "#clear") == list(range(1, 19))
    traffic = page.locator("#label option", has_text="traffic").get_attribute("value")
    assert after("select_option", "#label", traffic) == [3, 6, 9, 12]
    assert after("fill", "#low", "40") == [6, 9, 12]
    assert after("fill", "#high", "80") == [6, 9]
    assert text(page, "#range-text") == "40–80 %"
    after("click", "#clear")
    assert after("fill", "#text", "NUMBER 1") == [1, 2, 3, 12]
    assert after("fill", "#text", "second for 7") == [8]  # proposals too
    assert after("fill", "#text", "2.png") == [5, 6]
    assert after("fill", "#text", "no such thing") == []
    assert text(page, "#nothing") == "No pair passes these filters." and page.locator("#detail").is_hidden()


def test_sorting(open_page, small_report):
    page = open_page(small_report)
    page.fill("#text", "number")
    page.wait_for_timeout(180)

    def sorted_by(sort: str) -> list[int]:
        page.select_option("#sort", sort)
        return shown_ranks(page)

    assert sorted_by("p-down") == list(range(12, 0, -1))
    assert sorted_by("p-up") == list(range(1, 13))
    assert sorted_by("caption")[:4] == [12, 9, 6, 3]  # bridges first; 1, 4, 7, 10 as numbers
    assert sorted_by("label") == [3, 6, 9, 12, 1, 2, 4, 5, 7, 8, 10, 11]
    assert sorted_by("rank") == list(range(1, 13))


def image_pixels(page: Any) -> tuple[list[int], list[int]]:
    """Two pixels of the large image: within the top left region, and at the bottom right."""
    page.wait_for_timeout(60)
    return page.evaluate("""() => {
      const context = image.getContext("2d");
      const pixel = (x, y) => context.getImageData(x * image.width, y * image.height, 1, 1);
      return [[...pixel(0.1, 0.1).data], [...pixel(0.95, 0.95).data]];
    }""")


def test_a_word_shows_its_regions_by_pointer_keyboard_and_tap(open_page, small_report):
    page = open_page(small_report)
    plain = image_pixels(page)
    assert plain[0] == plain[1]
    page.locator("#caption .seen").nth(1).hover()
    warm, rest = image_pixels(page)
    assert warm[0] > 120 and warm[0] > rest[0] + 70  # bright where the word is, dimmed elsewhere
    assert text(page, "#legend").split() == ["pond", "support", "90", "%"]
    page.locator("#caption .wrong").hover()
    nowhere = image_pixels(page)
    assert nowhere[0] == nowhere[1] and nowhere[0] != plain[0]
    page.mouse.move(5, 5)
    assert image_pixels(page) == plain
    page.locator("#caption .word").nth(1).focus()
    assert image_pixels(page)[0] == warm
    press(page, "Enter")  # pins the word
    page.locator("#list").focus()
    assert image_pixels(page)[0] == warm
    label = page.locator("#caption .word").nth(2).get_attribute("aria-label")
    assert label == "number: not borne out, support 10 %"


def test_only_words_with_support_are_green(open_page, tmp_path):
    """A word that says nothing, such as "with", must not look found in a wrong caption."""
    words = tuple(
        WordVerdict(start, stop, support, wrong)
        for start, stop, support, wrong in [(0, 4, 0.1, True), (5, 9, 0.5, False), (10, 14, 0.9, False)]
    )
    row = AuditRow("p", "i.png", "pier with boat", "", "", 0.1, True, 1, {}, words)
    summary = AuditSummary(1, 1, 1, 1.0, None, 0, 0, dataset=FINGERPRINT)
    page = open_page(write_report(tmp_path, [row], summary, grey))
    marks = page.locator("#caption .word").evaluate_all("(words) => words.map((word) => word.className)")
    assert marks == ["word wrong", "word open", "word seen"]
    lines = page.locator("#caption .word").evaluate_all(
        "(words) => words.map((word) => getComputedStyle(word).textDecorationLine)"
    )
    assert lines == ["underline", "none", "underline"]
    assert page.locator("#caption .word").nth(1).get_attribute("aria-label") == "with: open, support 50 %"


def test_a_missing_image_is_said(open_page, small_report):
    page = open_page(small_report)
    press(page, "j " * 10)
    assert selected(page) == "p10" and text(page, "#legend") == "This image could not be read"
    assert page.locator("#image").evaluate("(canvas) => canvas.classList.contains('absent')")


def test_hostile_text_stays_text(open_page, small_report):
    page = open_page(small_report)
    press(page, "End")
    for number, caption in reversed(list(enumerate(NASTY))):
        assert text(page, "#place") == f"Rank {13 + number} of 18"
        assert page.locator("#caption").text_content() == caption
        assert "".join(page.locator("#caption .word").all_text_contents()) == "".join(caption.split())
        assert page.locator(".proposal .caption").text_content() == caption
        assert page.locator("#evidence dt").text_content() == caption.replace("_", " ")
        press(page, "a k k" if number < len(NASTY) - 1 else "a k")
    expected = {caption: {"action": "accept", "caption": caption} for caption in NASTY}
    assert decisions(page) == expected
    page.wait_for_timeout(200)
    page.reload()
    page.wait_for_selector(".row")
    assert decisions(page) == expected
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main b:not(#names b), script:not([id])").count() == 1  # our own script
    press(page, "End k")
    arabic = page.locator("#caption")
    assert arabic.evaluate("(element) => getComputedStyle(element).direction") == "rtl"


def test_the_policy_stops_scripts_and_requests(browser, small_report):
    """Were markup to get in, nothing would happen. A page of its own, for refusals are console errors."""
    page = browser.new_page()
    page.context.set_offline(True)
    tried: list[Any] = []
    page.on("request", lambda request: tried.append(request))
    page.goto(small_report.as_uri())
    page.wait_for_selector(".row")
    blocked = page.evaluate("""async () => {
      const seen = [];
      document.addEventListener("securitypolicyviolation", (event) => seen.push(event.effectiveDirective));
      const script = document.createElement("script");
      script.textContent = "window.hacked = 1";
      const image = document.createElement("img");
      image.src = "https://example.org/a.png";
      document.body.append(script, image);
      await fetch("https://example.org/").catch(() => 0);
      await new Promise((resolve) => setTimeout(resolve, 100));
      return seen;
    }""")
    assert {"connect-src", "img-src"} <= set(blocked) and any(name.startswith("script") for name in blocked)
    assert page.evaluate("window.hacked") is None
    assert {request.failure for request in tried if request.url.startswith("http")} <= {"csp"}
    page.close()


@pytest.mark.parametrize(
    ("markup", "error", "elsewhere"),
    [
        ("<script>throw new Error('broken')</script>", "broken", []),
        ("<script>console.error('odd')</script>", "odd", []),
        ("<img src='https://example.org/a.png'>", "ERR_INTERNET_DISCONNECTED", ["https://example.org/a.png"]),
        ("<img src='missing.png'>", "ERR_FILE_NOT_FOUND", []),
    ],
)
def test_what_these_tests_forbid_is_noticed(browser, tmp_path, markup, error, elsewhere):
    """Any other page would fail the tests that open it: see `open_page`."""
    (tmp_path / "page.html").write_text(f"<link rel=icon href='data:,'><div class=row>row</div>{markup}")
    opener = PageOpener(browser)
    page = opener(tmp_path / "page.html")
    page.wait_for_timeout(100)
    opener.close()
    assert len(opener.errors) == 1 and error in opener.errors[0]
    assert opener.requests_elsewhere == elsewhere and len(opener.requests) >= 1


def test_the_report_needs_no_network(open_page, small_report):
    page = open_page(small_report)
    assert page.evaluate("navigator.onLine") is False
    assert {url.partition(":")[0] for url in open_page.requests} <= {"file", "data"}
    assert [url for url in open_page.requests if url.startswith("file:")] == [small_report.as_uri()]


def test_light_and_dark_and_readable_roles(open_page, small_report):
    brightness = {}
    page = open_page(small_report)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        colour = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        brightness[scheme] = int(colour.split("(")[1].split(",")[0])
    assert brightness["light"] > 200 > 60 > brightness["dark"]
    assert page.get_by_role("listbox").get_attribute("aria-activedescendant") == "row-0"
    option = page.get_by_role("listbox").get_by_role("option", selected=True)
    assert option.count() == 1 and option.get_attribute("aria-setsize") == "18"
    assert page.get_by_role("button", name="Keep").is_visible()
    assert page.locator("[aria-live=polite]").count() == 2
    wave = page.locator("#caption .wrong").evaluate("(word) => getComputedStyle(word).textDecorationStyle")
    assert wave == "wavy"  # told apart without colour


def test_an_empty_audit_opens(open_page, tmp_path):
    page = open_page(write_report(tmp_path, [], AuditSummary(0, 0, 0, float("nan"), None, 0, 0), grey))
    assert text(page, "#nothing") == "The audit judged no pairs." and "not known" in text(page, "#figures")
    press(page, "j a y d e r u")


def test_unlikely_proposals_are_called_so(open_page, tmp_path):
    """Those that `pmpguard clean` would not take by itself are in the detail, not in the list."""
    rows = [
        AuditRow(f"p{number}", f"{number}.png", f"a pond {number}", "train", "", 0.1, True, number + 1,
                 proposals=(Proposal(f"a lake {number}", p, "x"), Proposal("a hill", 0.49, "y")))
        for number, p in enumerate((0.5, 0.499))
    ]  # fmt: skip
    page = open_page(
        write_report(tmp_path, rows, AuditSummary(2, 2, 2, 1.0, None, 0, 0, dataset=FINGERPRINT), grey)
    )
    assert (text(page, "#row-0 .best"), text(page, "#row-1 .best")) == ("a lake 0", "")
    unlikely = page.locator(".proposal").filter(has_text="unlikely")
    assert page.locator(".proposal").count() == 2 and unlikely.count() == 1
    assert "a hill" in unlikely.inner_text()
    press(page, "?")
    assert "under 50 % it is called unlikely" in text(page, "#help")


def large_audit(count: int) -> tuple[list[AuditRow], AuditSummary]:
    captions = [f"many buildings and {n} trees are near a road number {n % 700} ." for n in range(9000)]
    words = [words_of(caption, wrong="trees")[:5] for caption in captions]
    rows = []
    for number in range(count):
        code = number * 7919 % len(captions)
        rows.append(
            AuditRow(
                pair_id=f"pair-{number:06d}",
                image=f"images/{number * 31 % 1040}.png",
                caption=captions[code],
                split="train",
                label=f"class {number % 30}",
                p_match=number / count,
                flag=number < count // 5,
                rank=number + 1,
                evidence={"cosine": number / count},
                words=words[code],
                grid=(2, 2),
                proposals=(Proposal(captions[(code + 1) % 9000], 0.9, f"pair-{number // 2:06d}"),) * 3,
            )
        )
    return rows, AuditSummary(count, 1040, count // 5, 0.2, (0.19, 0.21), 0, 0, dataset=FINGERPRINT)


SCROLL = """async (step) => {
  const frames = [];
  let before = performance.now();
  for (let i = 0; i < 60; i++) {
    list.scrollTop += step;
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    frames.push(now - before);
    before = now;
  }
  return frames.sort((a, b) => a - b);
}"""


@pytest.mark.slow
def test_fifty_thousand_pairs_load_and_scroll(open_page, tmp_path):
    """Bounds are generous for busy machines; an idle one shows the first row in half a second."""
    rows, summary = large_audit(50_000)
    tile = Image.new("RGB", (32, 32), (80, 120, 80))
    path = write_report(tmp_path, rows, summary, lambda _: tile, most=50_000)
    assert path.stat().st_size < 12_000_000
    page = open_page(path)
    assert page.evaluate("performance.getEntriesByName('pairs-shown')[0].startTime") < 4000
    assert text(page, "#count") == "50,000 pairs"
    page.wait_for_timeout(300)
    sprites = [url for url in open_page.requests if "/sprites/" in url]
    assert 1 <= len(sprites) <= 4  # only what is in sight
    for step in (400, 60_000):
        frames = page.evaluate(SCROLL, step)
        assert frames[30] < 60 and frames[54] < 250, f"step {step}: median {frames[30]}, 90 % {frames[54]} ms"
        assert page.locator(".row").count() < 40
    page.wait_for_timeout(300)
    press(page, "End")
    assert text(page, "#place") == "Rank 50,000 of 50,000"
    assert page.evaluate("list.scrollTop + list.clientHeight >= list.scrollHeight - 1")
    for act in ("byId('sort').value = 'caption'", "byId('text').value = 'number 12'"):
        spent = page.evaluate(f"{act}; (() => {{ const t = performance.now(); applyFilters(); "
                              "return performance.now() - t; })()")  # fmt: skip
        assert spent < 2500
    expected = sum("number 12" in row.caption or "number 12" in row.proposals[0].caption for row in rows)
    assert text(page, "#count") == f"{expected:,} of 50,000 pairs"
    page.wait_for_timeout(300)
    painted = page.locator("#row-0 canvas").evaluate(
        "(c) => wanted.get(c) && !c.classList.contains('absent')"
    )
    assert painted and len([url for url in open_page.requests if "/sprites/" in url]) < 110
