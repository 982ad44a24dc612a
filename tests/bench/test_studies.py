"""The studies, with processes and recordings made up."""

import pytest
from handmade import Handmade
from msgspec import convert, to_builtins
from msgspec.structs import replace
from plain_json import in_json

from stepscope.bench.grid import BenchRequest, Variant
from stepscope.bench.record import ProcessRecord
from stepscope.bench.results import BatchTry, PointStatus
from stepscope.bench.studies import cpu_gpu, memory
from stepscope.bench.studies.cpu_gpu import loss_curves, losses_agree, shortened
from stepscope.bench.studies.memory import SINGLE, Technique, all_together, largest_batch
from stepscope.bench.studies.operator_kinds import KindTime, arithmetic_of, explain, step_times
from stepscope.record.errors import UsageError
from stepscope.workloads.measure.record import TrainMeasured

MS = 1_000_000


def quiet(_):
    pass


def request(study, device="cpu", **more):
    options = {"batches": (8,), "rounds": 1, **more}
    settings = options.pop("settings", {})
    return BenchRequest(("mlp",), ("train",), (device,), settings=settings, study=study, **options)


# ---- the CPU against the GPU


def trained(point, step_ms, losses, score, **more):
    """The record of a training that took so long a step."""
    measured = {
        "device_name": point.device.upper(),
        "mode": "train",
        "arithmetic": "fp32",
        "series_ms": [step_ms] * 20,
        "elapsed_s": step_ms * 20 / 1e3,
        "calls": 20,
        "samples": 20 * point.batch,
        "train_samples": 800,
        "steps": 20,
        "losses": [[n, loss] for n, loss in enumerate(losses, start=1)],
        "scores": [{"step": 20, "train_s": step_ms / 50, "loss": losses[-1], "score": score}],
        "score_name": "accuracy",
        "final_loss": losses[-1],
        "final_score": score,
        "peak_memory_bytes": 1 << 30,
        "notes": [],
    }
    made = {
        "key": point.key(),
        "point": to_builtins(point),
        "status": "ok",
        "measured": measured,
        "seconds": 1.0,
        **more,
    }
    return convert(made, ProcessRecord)


class TwoDevices:
    """Stands in for measuring: the second of two devices is ten times as fast."""

    def __init__(self):
        self.points = []

    def __call__(self, point, folder, timeout_s):
        self.points.append(point)
        fast = point.device == "cuda"
        losses = [1.0, 0.5, 0.25] if not fast else [1.0, 0.5001, 0.2502]
        return trained(point, 10.0 if fast else 100.0, losses, 0.91 if fast else 0.912)


def step_of(kernels, steps=2):
    """Steps of 100 ms with (operator, start, end, kernel ms) each; no kernel: work of the CPU."""
    made = Handmade()
    for number in range(steps):
        at = number * 100 * MS
        made.annotation(f"ProfilerStep#{number}", at, at + 99 * MS)
        for operator, start, end, kernel_ms in kernels:
            made.operator(operator, at + start * MS, at + end * MS)
            if kernel_ms is not None:
                begun = at + start * MS
                end = begun + MS + int(kernel_ms * MS)
                made.work(begun + MS, end, (begun, begun + 1000), "elementwise_kernel")
    return made.timeline()


CPU = [("aten::convolution", 0, 60, None), ("aten::relu", 60, 80, None)]
GPU = [("aten::convolution", 0, 5, 0.6), ("aten::relu", 5, 8, 0.4)]


def recording(point, folder, timeout_s):
    return step_of(GPU if point.device == "cuda" else CPU)


def ceilings(device, tell):
    if device == "cuda":
        return {"matmul_fp32_tflops": 50.0, "memory_gb_per_s": 4000.0}
    return {"matmul_fp32_tflops": 0.5, "memory_gb_per_s": 20.0}


@pytest.fixture
def _with_gpu(monkeypatch):
    monkeypatch.setattr(cpu_gpu, "why_no_cuda", lambda: None)


def studied(tmp_path, measure=None, record=recording, **more):
    asked = request("cpu-gpu", **more)
    return in_json(
        cpu_gpu.run(
            asked, tmp_path, quiet, measure=measure or TwoDevices(), record=record,
            ceilings=ceilings,
        )
    )  # fmt: skip


@pytest.mark.usefixtures("_with_gpu")
def test_the_speedup_has_an_interval_and_the_time_saved(tmp_path):
    study = studied(tmp_path)
    assert study["speedup"]["ratio"] == pytest.approx(10.0)
    assert study["speedup"]["low"] < 10 < study["speedup"]["high"]
    assert study["cpu"]["epoch_s"] == pytest.approx(10.0)
    assert study["saved"]["epoch_s"] == pytest.approx(9.0)
    assert study["saved"]["train_s"] == pytest.approx(1.8)


@pytest.mark.usefixtures("_with_gpu")
def test_both_devices_train_with_the_same_seed_samples_and_batches(tmp_path):
    measure = TwoDevices()
    studied(tmp_path, measure, settings={"seed": 3, "samples": 64}, rounds=2)
    trainings, speeds = measure.points[:2], measure.points[2:]
    assert [point.device for point in trainings] == ["cuda", "cpu"]
    assert trainings[0].settings == trainings[1].settings
    assert dict(trainings[0].settings) == {
        "data": "resident", "epochs": 3, "samples": 64, "seed": 3,
    }  # fmt: skip
    assert [point.device for point in speeds] == ["cpu", "cuda"]
    assert all("epochs" not in dict(point.settings) for point in speeds)


@pytest.mark.usefixtures("_with_gpu")
def test_curves_and_agreement_stand_side_by_side(tmp_path):
    study = studied(tmp_path)
    assert study["curves"]["losses"][1] == {"step": 2, "cpu": 0.5, "gpu": 0.5001}
    assert study["curves"]["scores"][0]["gpu"] == 0.91
    assert study["agreement"]["first_loss_relative"] == pytest.approx(0.0002 / 0.2502)
    assert study["agreement"]["same"] is True


@pytest.mark.usefixtures("_with_gpu")
def test_operators_are_compared_by_kind_with_the_reason(tmp_path):
    convolution, pointwise = studied(tmp_path)["operators"]
    assert convolution["kind"] == "convolution"
    assert convolution["cpu_ms"] == pytest.approx(60.0)
    assert convolution["gpu_ms"] == pytest.approx(0.6)
    assert convolution["speedup"] == pytest.approx(100.0)
    assert convolution["possible"] == pytest.approx(100.0)
    assert "50.0 TFLOP/s against 500 GFLOP/s" in convolution["why"]
    assert pointwise["bound"] == "memory"
    assert pointwise["possible"] == pytest.approx(200.0)


@pytest.mark.usefixtures("_with_gpu")
def test_how_long_the_gpu_waits_is_known(tmp_path):
    assert studied(tmp_path)["waiting"] == {"step_ms": pytest.approx(10.0), "busy_ms": 1.0}


@pytest.mark.usefixtures("_with_gpu")
def test_a_device_that_fails_leaves_a_study_that_says_so(tmp_path):
    def broken(point, folder, timeout_s):
        why = {"status": "out_of_memory", "why": "too large", "measured": None}
        return trained(point, 1.0, [1.0], 0.0, **why)

    study = studied(tmp_path, broken)
    assert study["gpu"]["status"] == "out_of_memory"
    assert study["cpu"]["status"] == "not tried"
    assert study["speedup"] is None


@pytest.mark.usefixtures("_with_gpu")
def test_without_a_recording_the_rest_stands(tmp_path):
    study = studied(tmp_path, record=lambda *_: "no steps were recorded")
    assert study["operators"] is None
    assert study["speedup"] is not None
    assert study["notes"] == ["no operators of cpu: no steps were recorded"]


@pytest.mark.usefixtures("_with_gpu")
def test_an_interrupted_study_does_not_repeat_what_is_finished(tmp_path):
    studied(tmp_path, rounds=2)
    again = TwoDevices()
    assert studied(tmp_path, again, rounds=2)["speedup"]["ratio"] == pytest.approx(10.0)
    assert again.points == []


def test_without_a_gpu_there_is_no_such_study(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_gpu, "why_no_cuda", lambda: "no GPU is visible")
    with pytest.raises(UsageError, match="needs a GPU: no GPU is visible"):
        studied(tmp_path)


@pytest.mark.usefixtures("_with_gpu")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batches": (8, 16)}, "one batch size"),
        ({"variants": (Variant("a"), Variant("b"))}, "one --fix"),
        ({"ablate": ("pin",)}, "--ablate"),
    ],
)
def test_what_a_study_cannot_answer_is_refused(tmp_path, change, words):
    with pytest.raises(UsageError, match=words):
        studied(tmp_path, **change)


def test_a_study_takes_one_model_and_trains_it(tmp_path):
    two = BenchRequest(("mlp", "lstm"), ("train",), ("cpu",), study="memory")
    with pytest.raises(UsageError, match="one model, not 2"):
        memory.run(two, tmp_path, quiet)
    infers = BenchRequest(("mlp",), ("infer",), ("cpu",), study="memory")
    with pytest.raises(UsageError, match="trains its model"):
        memory.run(infers, tmp_path, quiet)


def test_losses_that_are_no_numbers_do_not_count():
    ours = TrainMeasured(losses=[(1, None), (2, 0.5)])
    losses = [(1, 1.0), (2, 0.4), (3, 0.3)]
    theirs = TrainMeasured(losses=losses, final_loss=0.3, final_score=0.5)
    found = losses_agree(ours, theirs)
    assert found.first_loss_relative == pytest.approx(0.2)
    assert found.same is None
    assert len(loss_curves(ours, theirs).losses) == 2


def test_scores_a_point_apart_are_not_the_same():
    scores = [TrainMeasured(final_score=score) for score in (0.90, 0.92)]
    assert losses_agree(*scores).same is False
    losses = [TrainMeasured(final_loss=loss) for loss in (1.0, 1.005)]
    assert losses_agree(*losses).same is True


# ---- operators by kind


def kinds_of(timeline):
    return {kind: round(time.ms, 3) for kind, time in step_times(timeline).kinds.items()}


def test_what_is_inside_an_operator_counts_to_it():
    made = Handmade()
    made.annotation("ProfilerStep#1", 0, 100 * MS)
    made.operator("aten::lstm", 0, 50 * MS)
    made.operator("aten::addmm", 0, 30 * MS)
    made.operator("aten::sigmoid", 30 * MS, 40 * MS)
    made.operator("aten::addmm", 60 * MS, 70 * MS)
    assert kinds_of(made.timeline()) == {"recurrent": 50.0, "matmul": 10.0}


def test_backward_counts_to_the_operator_it_belongs_to():
    made = Handmade()
    made.annotation("ProfilerStep#1", 0, 100 * MS)
    made.operator("aten::lstm", 0, 20 * MS)
    inner = made.operator("aten::addmm", 5 * MS, 15 * MS)
    node = made.operator("autograd::engine::evaluate_function: AddmmBackward0", 30 * MS, 60 * MS)
    made.operator("aten::mm", 30 * MS, 60 * MS)
    timeline = made.timeline()
    for row in range(len(timeline.host)):
        name = timeline.name_of(int(timeline.host.name[row]))
        if "AddmmBackward0" in name or name == "aten::addmm":
            timeline.host.sequence[row] = 7
    assert inner < node
    assert kinds_of(timeline) == {"recurrent": 50.0}


def test_the_optimizers_own_arithmetic_is_the_optimizers():
    made = Handmade()
    made.annotation("ProfilerStep#1", 0, 100 * MS)
    made.annotation("Optimizer.step#SGD.step", 10 * MS, 30 * MS)
    made.operator("aten::add_", 10 * MS, 20 * MS)
    assert kinds_of(made.timeline()) == {"optimizer": 10.0}


def test_what_a_loader_computes_is_none_of_the_models_work():
    made = Handmade()
    made.annotation("ProfilerStep#1", 0, 100 * MS)
    made.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter", 0, 30 * MS)
    made.operator("aten::stack", 5 * MS, 25 * MS)
    assert kinds_of(made.timeline()) == {"other": 20.0}


def test_kernels_without_an_operator_are_told_by_their_names():
    made = Handmade()
    made.work(0, 2 * MS, launch=(0, 1000), name="ampere_sgemm_128x64")
    made.work(3 * MS, 4 * MS, launch=(2000, 3000), name="something_unheard_of")
    assert kinds_of(made.timeline()) == {"matmul": 2.0, "other": 1.0}


# ---- why they differ


def test_small_kernels_explain_a_speedup_below_the_ceilings():
    limits = ({"memory_gb_per_s": 20.0}, {"memory_gb_per_s": 4000.0})
    short_ones = explain("pointwise", 10.0, KindTime(1.0, 500), limits, ("fp32", "fp32"))
    assert "500 kernels of 2.0 µs, too short to fill the GPU" in short_ones.why
    long_ones = explain("pointwise", 10.0, KindTime(1.0, 5), limits, ("fp32", "fp32"))
    assert "too short" not in long_ones.why


def test_recurrence_is_explained_by_its_order():
    found = explain("recurrent", 5.0, KindTime(1.0, 500), ({}, {}), ("fp32", "fp32"))
    assert found.bound == "sequence"
    assert "waits for the previous one" in found.why


def test_unknown_ceilings_promise_nothing():
    found = explain("matmul", 5.0, None, ({}, {}), ("fp32", "fp32"))
    assert found.possible is None
    assert explain("other", None, None, ({}, {}), ("fp32", "fp32")).why == ""


def test_products_compute_in_tf32_only_where_that_was_asked():
    assert arithmetic_of("convolution", "tf32", ()) == "tf32"
    assert arithmetic_of("matmul", "tf32", ()) == "fp32"
    assert arithmetic_of("matmul", "tf32", ("tf32=on",)) == "tf32"
    assert arithmetic_of("matmul", "bf16", ()) == "bf16"


# ---- the largest batch


def fits_below(most, seconds=1.0):
    def attempt(batch):
        status = PointStatus.OK if batch <= most else PointStatus.OUT_OF_MEMORY
        return BatchTry(batch, status, seconds=seconds)

    return attempt


@pytest.mark.parametrize("most", [1, 3, 7, 8, 9, 100, 1000])
def test_the_largest_batch_is_found_from_any_start(most):
    found = largest_batch(8, 65536, 1e6, fits_below(most))
    assert found.bound == "memory"
    assert found.batch <= most < found.too_large
    assert found.too_large - found.batch <= max(1, found.batch // 16)


def test_a_batch_that_never_fits_is_an_answer():
    found = largest_batch(8, 64, 1e6, fits_below(0))
    assert (found.batch, found.too_large) == (None, 1)


def test_the_search_stops_at_its_limit():
    found = largest_batch(8, 100, 1e6, fits_below(10**9))
    assert (found.batch, found.bound) == (100, "limit")


def test_the_search_stops_when_the_next_try_would_take_too_long():
    found = largest_batch(8, 65536, 10.0, fits_below(10**9, seconds=3.0))
    assert (found.bound, found.batch) == ("time", 16)


def test_other_failures_end_the_search_with_their_reason():
    def attempt(batch):
        if batch > 16:
            return BatchTry(batch, PointStatus.FAILED, "no such algorithm", 1.0)
        return BatchTry(batch, PointStatus.OK, seconds=1.0)

    found = largest_batch(8, 65536, 1e6, attempt)
    assert (found.batch, found.bound, found.why) == (16, "failure", "no such algorithm")


def test_accumulation_is_searched_in_its_own_steps():
    found = largest_batch(8, 65536, 1e6, fits_below(50), step=4)
    assert found.batch == 48


# ---- the memory study


class Room:
    """Stands in for measuring: memory is a constant and some for each sample."""

    def __init__(self, limit=1000, unfit=()):
        self.limit, self.unfit, self.points = limit, unfit, []

    def __call__(self, point, folder, timeout_s):
        self.points.append(point)
        names = [fix.partition("=")[0] for fix in point.fixes]
        each = 10
        for name, share in (("amp", 0.6), ("checkpointing", 0.5)):
            each *= share if name in names and name not in self.unfit else 1
        peak = 100 + each * point.batch
        fixes = [
            {
                "name": name,
                "state": "not applicable" if name in self.unfit else "applied",
                "reasons": ["nothing to take hold of"] if name in self.unfit else [],
            }
            for name in names
        ]
        ok = peak <= self.limit
        measured = {
            "device_name": "a device",
            "mode": "train",
            "peak_memory_bytes": round(peak),
            "elapsed_s": 1.0,
            "samples": 100,
        }
        made = {
            "key": point.key(),
            "point": to_builtins(point),
            "status": "ok" if ok else "out_of_memory",
            "why": None if ok else "too large",
            "fixes": fixes,
            "measured": measured,
            "seconds": 1.0,
        }
        return convert(made, ProcessRecord)


def memory_study(tmp_path, measure, **more):
    settings = {"memory_limit_gib": 2.0, **more.pop("settings", {})}
    asked = request("memory", settings=settings, **more)
    return in_json(memory.run(asked, tmp_path, quiet, measure=measure))


def rows_of(study):
    return {row["technique"]: row for row in study["rows"]}


def test_each_technique_has_its_peak_and_its_largest_batch(tmp_path):
    rows = rows_of(memory_study(tmp_path, Room(unfit=("sdpa",))))
    assert rows["fp32"]["peak_memory_bytes"] == 180
    assert 84 < rows["fp32"]["largest_batch"] <= 90
    assert rows["AMP"]["of_first"] == pytest.approx(148 / 180)
    assert rows["AMP"]["largest_batch"] > 1.5 * rows["fp32"]["largest_batch"]
    assert rows["AMP"]["largest_samples_per_s"] == 100.0


def test_accumulation_counts_what_makes_one_step(tmp_path):
    row = rows_of(memory_study(tmp_path, Room()))["accumulation"]
    assert row["peak_memory_bytes"] == 120
    assert row["largest_batch"] == 4 * row["largest_micro_batch"]
    assert 320 < row["largest_batch"] <= 360


def test_a_technique_that_does_not_apply_says_why_and_is_left_out_of_all(tmp_path):
    measure = Room(unfit=("sdpa", "checkpointing"))
    rows = rows_of(memory_study(tmp_path, measure))
    assert rows["fused attention"]["status"] == "not applicable"
    assert rows["fused attention"]["why"] == "nothing to take hold of"
    assert rows["fused attention"]["largest_batch"] is None
    assert rows["all together"]["fixes"] == ["accumulate=4", "amp=bf16"]


def test_a_batch_that_does_not_fit_is_no_error(tmp_path):
    rows = rows_of(memory_study(tmp_path, Room(limit=150)))
    assert rows["fp32"]["status"] == "out_of_memory"
    assert rows["fp32"]["peak_memory_bytes"] is None
    assert rows["fp32"]["largest_batch"] == 5
    assert rows["AMP"]["peak_memory_bytes"] == 148
    assert rows["AMP"]["of_first"] is None


def test_what_did_not_apply_is_seen_where_memory_ran_out_first(tmp_path):
    rows = rows_of(memory_study(tmp_path, Room(limit=150, unfit=("sdpa",))))
    assert rows["fused attention"]["status"] == "not applicable"


def test_a_batch_that_only_a_few_steps_have_room_for_does_not_count(tmp_path):
    class Growing(Room):
        """Memory that grows as the steps go on."""

        def __call__(self, point, folder, timeout_s):
            record = super().__call__(point, folder, timeout_s)
            if "steps" not in dict(point.settings) and point.batch > 70:
                status = PointStatus.OUT_OF_MEMORY
                return replace(record, status=status, why="in the end", measured=None)
            return record

    row = rows_of(memory_study(tmp_path, Growing()))["fp32"]
    assert 60 < row["largest_batch"] <= 70 < row["too_large"]
    assert row["largest_samples_per_s"] == 100.0


def test_samples_bound_the_batch(tmp_path):
    study = memory_study(tmp_path, Room(), settings={"samples": 32})
    assert study["batch_limit"] == 32
    assert rows_of(study)["fp32"]["bound"] == "limit"


def test_other_fixes_that_were_asked_for_are_rows_too(tmp_path):
    asked = (Variant("none"), Variant("tf32=off", ("tf32=off",)), Variant("sdpa", ("sdpa",)))
    study = memory_study(tmp_path, Room(), variants=asked)
    assert [row["technique"] for row in study["rows"]].count("tf32=off") == 1
    assert [row["fixes"] for row in study["rows"]].count(["sdpa"]) == 1


def test_every_try_is_one_process_and_none_is_made_twice(tmp_path):
    first, again = Room(), Room()
    memory_study(tmp_path, first)
    keys = [(point.key(), dict(point.settings).get("steps")) for point in first.points]
    assert len(set(keys)) == len(keys)
    memory_study(tmp_path, again)
    assert again.points == []


def test_the_cpu_needs_a_limit_and_the_batch_room_below_it(tmp_path):
    with pytest.raises(UsageError, match="needs --memory-limit-gib"):
        memory.run(request("memory"), tmp_path, quiet, measure=Room())
    with pytest.raises(UsageError, match="above its limit of 4"):
        memory_study(tmp_path, Room(), settings={"samples": 4})


def test_all_together_leaves_out_what_does_not_go_together():
    clash = Technique("graph", ("cuda_graph",))
    found = all_together([*SINGLE[:2], clash])
    assert "amp=bf16" in found.fixes
    assert all_together(SINGLE[:1]) is None


# ---- the recording


def test_a_recording_takes_few_steps_of_samples_on_the_device():
    from stepscope.bench.grid import Point

    point = Point.of("mlp", "train", 8, "cpu", data="synthetic", epochs=3, samples=500, seed=1)
    settings = dict(shortened(point).settings)
    assert settings["data"] == "resident"
    assert settings["seed"] == 1
    assert "epochs" not in settings
    assert settings["steps"] < 20
