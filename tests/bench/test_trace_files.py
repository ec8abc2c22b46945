"""Small files in the public formats, whole and broken."""

import json

import pytest

from relevo.bench.trace import Segment
from relevo.bench.trace_files import read_trace
from relevo.bench.workloads import Process
from relevo.errors import ConfigError

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:05.9799600,110,27
"""
MOONCAKE = [
    {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]},
    {"timestamp": 3000, "input_length": 512, "output_length": 7, "hash_ids": [1]},
]
BURSTGPT = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    """
5,1,2,ChatGPT,472,18,490,Conversation log
45,2,3,ChatGPT,1087,0,1087,Conversation log
118,3,9,GPT-4,417,276,693,API log
"""
)
CHATS = [
    {"id": "a", "conversations": [
        {"from": "human", "value": "one two"}, {"from": "gpt", "value": "three four five"},
        {"from": "human", "value": "six"}, {"from": "gpt", "value": "seven eight"}]},
    {"messages": [{"role": "user", "content": "one two"},
                  {"role": "assistant", "content": "nine"}]},
]  # fmt: skip


def words(text):
    return len(text.split())


def read(tmp_path, content, name="trace.csv", **options):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_trace(path, words, Process(1.0, 0.0), **options)


def lines(rows):
    return "\n".join(json.dumps(row) for row in rows)


def refused(tmp_path, content, match):
    with pytest.raises(ConfigError, match=match) as caught:
        read(tmp_path, content)
    assert "trace.csv" in str(caught.value)


def test_azure(tmp_path):
    trace = read(tmp_path, AZURE)
    assert [(a.at_s, a.prompt_tokens, a.output_tokens) for a in trace.arrivals] == [
        (0.0, 4808, 10), (0.052, 3180, 8), (2.0, 110, 27),
    ]  # fmt: skip
    assert trace.span_s == 3.0  # three requests, a second apart on average


@pytest.mark.parametrize(
    "spoilt",
    [
        AZURE.replace("\n", "\r\n").encode(),
        AZURE.replace("\n", "\r").encode(),
        b"\xef\xbb\xbf" + AZURE.encode(),
        AZURE.rstrip("\n").encode(),
        AZURE.replace("00,", "00+00:00,").encode(),  # 2024's times have a zone
    ],
    ids=["crlf", "cr", "bom", "no final newline", "zone"],
)
def test_line_ends_and_marks_change_nothing(tmp_path, spoilt):
    assert read(tmp_path, spoilt) == read(tmp_path, AZURE)


def test_columns_may_stand_in_any_order(tmp_path):
    moved = AZURE.replace("TIMESTAMP,ContextTokens,GeneratedTokens",
                          "TIMESTAMP,GeneratedTokens,ContextTokens")  # fmt: skip
    assert read(tmp_path, moved).arrivals[0].output_tokens == 4808


def test_rows_out_of_order_are_sorted_and_noted(tmp_path):
    head, first, second, third = AZURE.strip().split("\n")
    trace = read(tmp_path, "\n".join([head, third, first, second]))
    assert [a.prompt_tokens for a in trace.arrivals] == [4808, 3180, 110]
    assert "rows were not in order of time; sorted" in trace.notes


def test_equal_times_are_kept(tmp_path):
    head, first, *_ = AZURE.strip().split("\n")
    trace = read(tmp_path, "\n".join([head, first, first, first]))
    assert [a.at_s for a in trace.arrivals] == [0.0, 0.0, 0.0]
    assert "only 1 distinct times for 3 requests, as recorded" in trace.notes


def test_requests_without_tokens_are_left_out_and_counted(tmp_path):
    assert "1 requests without prompt or answer left out" in read(tmp_path, BURSTGPT).notes
    zero = AZURE.replace(",110,27", ",0,27")
    assert len(read(tmp_path, zero).arrivals) == 2
    refused(
        tmp_path,
        AZURE.split("\n", maxsplit=1)[0] + "\n2023-11-16 18:17:03,0,0\n",
        "no request with tokens",
    )


def test_burstgpt(tmp_path):
    trace = read(tmp_path, BURSTGPT)
    assert [(a.at_s, a.prompt_tokens, a.output_tokens) for a in trace.arrivals] == [
        (0.0, 472, 18), (113.0, 417, 276),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("", "line 1: the file is empty"),
        (AZURE.replace(",GeneratedTokens", ",Tokens"), "line 1: no column 'GeneratedTokens'"),
        (AZURE.replace("TIMESTAMP", "TIME"), "line 1: the columns .* are of no known trace"),
        (AZURE + "2023-11-16 18:17:0", "line 5: 1 columns instead of 3; truncated"),
        (AZURE.replace(",3180,", ",many,"), "line 3: ContextTokens: 'many' is not a number"),
        (AZURE.replace(",3180,", ",-4,"), "line 3: ContextTokens: '-4' is not a number"),
        (AZURE.replace("18:17:04.0319600", "yesterday"), "line 3: '2023-11-16 yesterday' is not"),
        (BURSTGPT.replace("45,2", "soon,2"), "line 3: 'soon' is not a time in seconds"),
        (lines(MOONCAKE)[:-9], "line 2: not valid JSON: .*truncated"),
        (lines(MOONCAKE).replace('"output_length": 7, ', ""), "line 2: no 'output_length'"),
        (lines(MOONCAKE).replace("[1, 2]", "[1]"), "line 1: 1 hash_ids for 1000 tokens; .* be 2"),
        (json.dumps(CHATS)[:-1], "line 1: the list has no end; truncated"),
        (json.dumps(CHATS, indent=1)[:-40], "line .*: not valid JSON: .*truncated"),
        (json.dumps([{"id": 1}]), "line 1: neither 'conversations' nor 'messages'"),
        (json.dumps([{"messages": [{"role": "user"}]}]), "line 1: a turn without 'from'"),
        (b"\xff\xfe\x00", "utf-8"),
    ],
)
def test_what_cannot_be_read_is_refused_with_line_and_reason(tmp_path, content, match):
    refused(tmp_path, content, match)


def test_mooncake_prefixes_are_shared(tmp_path):
    first, second = read(tmp_path, lines(MOONCAKE)).arrivals
    assert first.prompt == (Segment(1, 512), Segment(2, 488))
    assert second.prompt == (Segment(1, 512),)
    assert second.at_s == 3.0


def test_conversations_ask_with_all_that_was_said_before(tmp_path):
    trace = read(tmp_path, json.dumps(CHATS))
    assert sorted((a.prompt_tokens, a.output_tokens) for a in trace.arrivals) == [
        (2, 1), (2, 3), (6, 2),
    ]  # fmt: skip
    longest = max(trace.arrivals, key=lambda a: a.prompt_tokens)
    others = [a for a in trace.arrivals if a is not longest]
    assert all(a.prompt == longest.prompt[:1] for a in others)  # the same words, the same tokens
    assert read(tmp_path, lines(CHATS)).arrivals == trace.arrivals


def test_our_own_lists_are_read_back(tmp_path):
    trace = read(tmp_path, AZURE)
    assert read(tmp_path, trace.to_bytes(), "own.json") == trace
    refused(tmp_path, trace.to_bytes()[:-7], "line 1: not one of our arrival lists")
