"""Hits as flat rows and as CSV."""

import csv
import io

from pmpguard.geo.hit_rows import hit_rows, hits_to_csv
from pmpguard.search.query import SearchHit


def hit(name, caption=None, image="a.png", **metadata):
    return SearchHit(name, -1.5, None, "image", caption, image, metadata)


def test_columns_that_are_taken_are_kept_under_another_name():
    [row] = hit_rows([hit("a", score="good", box=[1, 2], more={"deep": float("nan")})])
    assert row["score"] == -1.5 and row["metadata_score"] == "good"
    assert row["box"] == "[1, 2]" and row["more"] == '{"deep": null}'


def test_an_image_in_a_parquet_file_is_named_by_file_and_row():
    first, second = hit_rows([hit("a", image="data/part-0.parquet#image/17"), hit("b", image="c.tar#1.png")])
    assert (first["parquet_url"], first["parquet_row"]) == ("data/part-0.parquet", 17)
    assert "parquet_url" not in second


def test_no_text_of_a_csv_is_a_formula_and_numbers_stay_numbers():
    captions = ["=1+1", "+1", "-1", "@x", "\t=1", "\n=1", "  =1", 'a, "quoted"\nline', "plain"]
    hits = [hit(f"={place}", caption, lon=-8.25) for place, caption in enumerate(captions)]
    rows = list(csv.DictReader(io.StringIO(hits_to_csv(hits))))
    assert [row["caption"] for row in rows] == [*(f"'{text}" for text in captions[:7]), *captions[7:]]
    assert {row["lon"] for row in rows} == {"-8.25"} and {row["score"] for row in rows} == {"-1.5"}
    assert rows[0]["id"] == "'=0" and rows[0]["probability"] == ""


def test_a_csv_of_nothing_has_a_header():
    assert hits_to_csv([]).strip().startswith("rank,id,score")
