"""Answers as HTML: everything that a user typed is escaped, and says its own direction (`dir=auto`).

Words are drawn by the browser, not into a picture: it shapes Arabic, and puts right what is read from the right.
"""

import json
from html import escape

from answers import Aligned, Classified, Filled, Marked, Ranked
from loading import Model

GOLDEN_ANGLE = 137.508  # degrees: labels that follow each other get colors that are far apart
TABS = {"align": "Word links", "fill": "Masks", "nearest": "Sentences", "head": "Own head"}  # a phone shows all four
TOY = "This is a toy model, far too small for any language. Its answers show that the page works; they mean little."


def message(text: str) -> str:
    """What the user should know, in place of the answer."""
    return f'<div class="zoo-message" role="alert" dir="auto">{escape(text)}</div>'


def hint(text: str) -> str:
    """What to do next."""
    return f'<p class="zoo-hint">{escape(text)}</p>'


def notes_of(notes: list[str]) -> str:
    """What limits an answer."""
    return "".join(f'<p class="zoo-note" dir="auto">{escape(note)}</p>' for note in notes)


def model_facts(model: Model) -> str:
    """What was loaded, in a line, a link to its card, and whether it is a toy."""
    facts = [
        f"<b>{escape(model.facts['type'])}</b>",
        f"{model.facts['parameters'] / 1e6:,.1f}M parameters",
        f"{model.layers} layers",
        f"reads {model.positions:,} tokens",
    ]
    if model.head:
        tuned_on = f" on {model.facts['tuned_on']}" if model.facts["tuned_on"] else ""
        facts.append(escape(f"fine-tuned for {model.head.replace('-', ' ')}{tuned_on}"))
    if model.facts["on_hub"]:
        url = f"https://huggingface.co/{escape(model.name)}"
        facts.append(f'<a href="{url}" target="_blank" rel="noopener">model card</a>')
    facts += [f'<span class="zoo-lacks">no {escape(TABS[tab].lower())}</span>' for tab in model.lacking]
    with_head = " zoo-with-head" if model.head else ""
    line = f'<p class="zoo-facts{with_head}" dir="auto">{" · ".join(facts)}</p>'
    return line + (f'<p class="zoo-message zoo-toy" role="note">{TOY}</p>' if model.is_toy else "")


def alignment(found: Aligned) -> str:
    """Both sentences, between which links.js draws the links."""
    if not found.links:
        body = '<p class="zoo-hint">No words were linked.</p>'
    else:
        partners = len({word for word, _ in found.links}), len({word for _, word in found.links})
        body = (
            f'<p class="zoo-hint">{len(found.links)} links: {partners[0]} of {len(found.source)} words with '
            f"{partners[1]} of {len(found.target)}.</p>"
        )
    links = [[x, y, round(p, 3)] for (x, y), p in zip(found.links, found.probabilities, strict=True)]
    sides = "".join(
        f'<div class="zoo-side zoo-{name}" dir="auto" role="group" aria-label="{name} sentence">'
        + "".join(f'<button type="button" class="zoo-word">{escape(word)}</button>' for word in words)
        + "</div>"
        for name, words in (("first", found.source), ("second", found.target))
    )
    return (
        '<div class="zoo-pair">'
        f'<div class="zoo-drawing" data-links="{escape(json.dumps(links))}">'
        f'<svg aria-hidden="true"></svg>{sides}</div></div><p class="zoo-partners" aria-live="polite"></p>{body}'
        f"{notes_of(found.notes)}{links_as_text(found)}"
    )


def links_as_text(found: Aligned) -> str:
    """The links in Pharaoh format, words numbered from 0, and as pairs of words; folded away."""
    if not found.links:
        return ""
    numbers = " ".join(f"{x}-{y}" for x, y in found.links)
    pairs = ", ".join(
        f"<bdi>{escape(found.source[x])}</bdi> – <bdi>{escape(found.target[y])}</bdi>" for x, y in found.links
    )
    return f'<details class="zoo-text"><summary>Links as text</summary><p>{numbers}</p><p>{pairs}</p></details>'


def bar(label: str, share: float, shown: str, aside: str = "", extra: str = "") -> str:
    """A labeled bar of a list; `share` of its full width. `label` and `aside` are escaped here."""
    return (
        f'<li style="--share:{max(0.0, min(1.0, share)):.1%}"><span class="zoo-label" dir="auto">{escape(label)}</span>'
        f'<span class="zoo-aside">{escape(aside)}{extra}</span><span class="zoo-value">{shown}</span></li>'
    )


def filled(found: Filled) -> str:
    """The text with the best words in it, and of each mask its candidates as bars."""
    lists = []
    for number, candidates in enumerate(found.masks, start=1):
        bars = "".join(bar(word, probability, f"{probability:.1%}") for word, _, probability in candidates)
        title = f"Mask {number}" if len(found.masks) > 1 else "Best words"
        lists.append(f'<section><h3 class="zoo-heading">{title}</h3><ol class="zoo-bars">{bars}</ol></section>')
    best = f'<p class="zoo-sentence zoo-best" dir="auto">{escape(found.text)}</p>'
    return f'{best}{notes_of(found.notes)}<div class="zoo-masks">{"".join(lists)}</div>'


def classified(found: Classified) -> str:
    """Labels as bars."""
    bars = "".join(bar(label, probability, f"{probability:.1%}") for label, probability in found.labels)
    return f'{notes_of(found.notes)}<ol class="zoo-bars">{bars}</ol>'


def marked(found: Marked) -> str:
    """The text with its parts colored by their labels."""
    if not found.parts:
        return f'{notes_of(found.notes)}<p class="zoo-hint">No part of the text got a label.</p>'
    labels = list(dict.fromkeys(label for *_, label, _ in found.parts))
    shown, end = "", 0
    for start, stop, label, probability in found.parts:
        hue = round(labels.index(label) * GOLDEN_ANGLE) % 360
        shown += (
            f'{escape(found.text[end:start])}<mark style="--hue:{hue}" title="{probability:.1%}">'
            f"<bdi>{escape(found.text[start:stop])}</bdi><small>{escape(label)}</small></mark>"
        )
        end = stop
    text = f'<p class="zoo-sentence zoo-marked" dir="auto">{shown}{escape(found.text[end:])}</p>'
    return text + notes_of(found.notes)


def ranking(found: Ranked, languages: dict[str, str]) -> str:
    """Sentences, the nearest first, with their languages where known."""
    bars = "".join(
        bar(
            text,
            cosine,
            f"{cosine:.3f}",
            aside=languages.get(text, ""),
            extra=' <span class="zoo-lacks">many tokens unknown to the tokenizer</span>'
            if text in found.unknown
            else "",
        )
        for text, cosine in found.sentences
    )
    return (
        f'{notes_of(found.notes)}<p class="zoo-hint">{len(found.sentences)} sentences by the cosine of their mean '
        f'states at layer {found.layer}.</p><ol class="zoo-bars zoo-long">{bars}</ol>'
    )
