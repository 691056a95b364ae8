import itertools
import json
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from dapo.observe.run_folder import RunFolder
from dapo.observe.spans import Span
from dapo.report.reader import RunContents, read_run
from dapo.report.trace import merge_to, time_of, trace_of

SPANS = st.lists(
    st.builds(
        Span,
        st.integers(0, 9),
        st.sampled_from(["generate", "score", "a phase"]),
        st.floats(1.8e9, 1.8e9 + 100),
        st.floats(0, 30),
        st.just(0.0),
        st.integers(1, 5),
    ),
    max_size=40,
)


def run_of(tmp_path, spans=(), rows=()):
    return RunContents(RunFolder(tmp_path), "run", rows=list(rows), spans=list(spans))


def slices(trace):
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_the_trace_of_a_run(tmp_path, make_run):
    run = read_run(make_run(tmp_path / "run", steps=4))
    trace = json.loads(json.dumps(trace_of([("my run", run)]), allow_nan=False))
    events = trace["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert names == {1: "generate", 2: "score", 3: "learn", 4: "publish"}
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["my run"]
    score = [e for e in slices(trace) if e["name"] == "score"][1]
    # step 2 begins a second after step 1, and its score 0.2 s after that
    assert (score["ts"], score["dur"], score["pid"], score["tid"]) == (1_200_000, 250_000, 1, 2)
    assert score["args"] == {"step": 2, "busy seconds": 0.1, "stretches": 5}
    counters = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counters[event["name"]].append((event["ts"], *event["args"].values()))
    assert counters["tokens per second"][0] == (900_000, 3200.0)  # at the end of step 1
    assert counters["acceptance"][-1] == (3_900_000, 0.6)
    assert counters["held-out accuracy"] == [(3_900_000, 0.8)]  # step 0 has no spans, so no time


def test_every_run_is_a_process_that_starts_at_zero(tmp_path):
    one = run_of(tmp_path, [Span(1, "learn", 100.0, 1.0, 1.0, 1)])
    two = run_of(tmp_path, [Span(1, "learn", 900.0, 2.0, 2.0, 1)])
    assert [(e["pid"], e["ts"], e["dur"]) for e in slices(trace_of([("a", one), ("b", two)]))] == [
        (1, 0, 1_000_000),
        (2, 0, 2_000_000),
    ]


@given(SPANS)
def test_slices_of_one_track_never_overlap(spans):
    tracks = defaultdict(list)
    for event in slices(trace_of([("run", RunContents(RunFolder("nowhere"), "run", spans=spans))])):
        assert event["dur"] >= 0
        tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert sum(map(len, tracks.values())) == len(spans)
    for track in tracks.values():
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(track))


@given(SPANS, st.integers(1, 20))
def test_merged_spans_keep_time_and_count(spans, limit):
    merged, together = merge_to(spans, limit)
    assert len(merged) <= max(limit, 3)  # one a phase is the least
    assert (together == 0) == (len(spans) <= limit)
    assert sum(span.count for span in merged) == sum(span.count for span in spans)
    for name in {span.name for span in spans}:
        all_of, kept = ([s for s in each if s.name == name] for each in (spans, merged))
        assert min(s.start for s in kept) == min(s.start for s in all_of)
        assert abs(max(s.start + s.seconds for s in kept) - max(s.start + s.seconds for s in all_of)) < 1e-4
        assert all(s.busy <= s.seconds for s in kept)


def test_time_is_added_up_by_phase_and_step(tmp_path):
    """Of two stretches in a step the sum counts, and of steps without the phase none."""
    spans = [
        Span(1, "score", 0.0, 9.0, 3.0, 1),
        Span(1, "score", 10.0, 9.0, 4.0, 1),
        Span(4, "score", 30.0, 1.0, 1.0, 1),
    ]
    phases = time_of(run_of(tmp_path, [*spans, Span(2, "learn", 20.0, 9.0, 9.0, 1)]))["phases"]
    assert phases == [("learn", 9.0, 9.0, 9.0), ("score", 8.0, 4.0, 7.0)]  # most first: all, median, longest


def test_a_run_without_spans_has_the_seconds_of_its_metrics(tmp_path):
    rows = [
        {"step": 1, "time/learn": 2.0, "time/generate": 1.0, "time/step": 4.0, "time/tokens_per_second": 7.0},
        {"step": 2, "time/generate": None, "time/learn": 1.0, "time/step": 1.0},
    ]
    found = time_of(run_of(tmp_path, rows=rows))
    assert found["phases"] == [("learn", 3.0, 1.5, 2.0), ("generate", 1.0, 1.0, 1.0)]
    assert "recorded no spans" in found["note"]
    starts = [(event["name"], event["ts"]) for event in slices(trace_of([("run", run_of(tmp_path, rows=rows))]))]
    assert starts == [("generate", 0), ("learn", 1_000_000), ("learn", 4_000_000)]  # one behind the other


def test_nothing_was_measured(tmp_path):
    assert time_of(run_of(tmp_path)) == {"phases": [], "busy": [], "ages": [], "note": ""}
    assert slices(trace_of([("run", run_of(tmp_path))])) == []


def test_who_works_beside_the_driver_is_no_phase(tmp_path):
    """Spans of both may overlap each other and every phase; in the trace they are tracks above them."""
    spans = [
        Span(1, "generate", 10.0, 2.0, 2.0, 1),
        Span(1, "learner busy", 10.5, 3.0, 3.0, 1),
        Span(1, "engines busy", 10.0, 2.0, 1.5, 4),
    ]
    rows = [
        {"step": 1, "policy/staleness_share/0": 1.0, "sampling/trained_tokens": 300},
        {"step": 2, "policy/staleness_share/0": 0.5, "policy/staleness_share/2": 0.5, "sampling/trained_tokens": 100},
        {"step": 3, "policy/staleness_share/1e3": 1.0, "sampling/trained_tokens": None},  # of nobody's making
    ]
    run = run_of(tmp_path, spans, rows)
    found = time_of(run)
    assert found["phases"] == [("generate", 2.0, 2.0, 2.0)]
    assert [(name, round(share, 4)) for name, share in found["busy"]] == [
        ("engines busy", 0.4286),
        ("learner busy", 0.8571),
    ]
    tracks = [
        event["args"]["name"] for event in trace_of([("a", run)])["traceEvents"] if event["name"] == "thread_name"
    ]
    assert tracks == ["engines busy", "learner busy", "generate"]
    assert found["ages"] == [(0, 0.875), (1, 0.0), (2, 0.125)]  # 350, none and 50 of 400 tokens


def test_ages_are_not_shown_where_all_are_0(tmp_path):
    rows = [{"step": 1, "policy/staleness_share/0": 1.0, "sampling/trained_tokens": 9}]
    assert time_of(run_of(tmp_path, [], rows))["ages"] == []
