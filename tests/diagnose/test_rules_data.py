"""Rules about how batches are made, on handwritten runs."""

import functools
from dataclasses import replace
from types import SimpleNamespace

import pytest
from cases import PROGRAM, case, dataset, loader, merged, part, show, site, sound, trace
from rulings import findings_of

from stepscope.diagnose.case import Case
from stepscope.record.finding import Place
from stepscope.record.frames import work_of_call, work_of_line

RULES = (
    "data.loader_bound",
    "data.too_few_workers",
    "data.fresh_memory",
    "data.too_many_workers",
    "data.no_persistent_workers",
    "data.no_prefetch",
    "data.tiny_samples",
    "data.slow_storage",
    "data.slow_decoding",
    "data.gpu_augmentation",
    "data.cpu_oversubscribed",
    "data.no_pinning",
    "transfer.blocking_copies",
    "transfer.not_overlapped",
    "transfer.repeated_copies",
    "transfer.device_to_host",
    "sync.item",
    "sync.cpu",
    "sync.print",
    "sync.synchronize",
    "sync.nonzero",
    "sync.together",
    "sync.empty_cache",
)


def waiting(wait_ms, *, device="cuda", workers=0, batch=None, **changes):
    """A run that waits so long for data, in steps of 20 ms besides."""
    made = dataset(wait_ms if batch is None else batch)
    usual = {
        "steps": {"mean_ms": 20.0 + wait_ms},
        "phases_ms": {"data_wait": wait_ms, "forward": 6.9},
        "loaders": [loader(num_workers=workers)],
        "pipeline": [made],
    }
    return show(device, **merged(usual, changes))


def found(document, device="cuda", after=None, source=None, rules=RULES):
    """What the rules find, by id."""
    given = case(device, document, document and document.get("timeline"), after, source)
    return sound(one for name in rules for one in findings_of(name, given))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("after", [None, 10.0, 20.0, 30.0])
def test_a_healthy_run_gives_nothing(device, after):
    document = show(device, timeline=trace(device))
    assert found(document, device, after) == {}


@functools.cache
def unknown(device):
    """Cases in which nothing, or all but one thing, is known."""
    empty, traced = show(device), trace(device)
    return [
        Case(0.0, device, 0.0),
        Case(20.0, device, 0.0),
        case(device, {}, {}),
        case(device, None, traced),
        case(device, None, traced, after=10.0),
        *(case(device, empty | {key: None}, None) for key in empty),
        *(
            case(device, empty | {"timeline": None, "pipeline": []}, traced | {key: None})
            for key in traced
        ),
    ]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("name", RULES)
def test_no_rule_fails_where_nothing_is_known(name, device):
    for one in unknown(device):
        assert findings_of(name, one) == []


def test_batches_made_by_the_host_take_what_bare_steps_wait_not_what_recorded_ones_do():
    one = found(waiting(40.0, batch=55.0))["data.loader_bound"]
    assert "A batch takes 40.0 ms to make" in one.why
    of_workers = found(waiting(40.0, workers=1, batch=55.0))["data.too_few_workers"]
    assert "A worker takes 55.0 ms per batch" in of_workers.why


def test_a_loader_without_workers_is_told_with_the_transform_to_blame():
    parts = (
        part("Resize", "transform", 0.6, 0.6, line=31),
        part("train.py:22", "line", 0.3, 0.3, line=22),
        part("default_collate", "collate", 0.1, 0.1),
    )
    document = waiting(40.0, pipeline=[dataset(40.0, *parts)])
    one = found(document)["data.loader_bound"]
    assert one.where == (Place(PROGRAM, 31), Place(PROGRAM, 40))
    assert "60% of that is Resize (train.py:31)" in one.why
    assert str(one.fix) == "workers=3"
    assert str(one.settings[0]) == "num_workers=3"
    assert (one.kind, one.effort, one.scope) == ("exact", "one argument", "step")
    assert one.share == pytest.approx(2 / 3)
    assert one.predicted.step_ms == pytest.approx(20.0)
    assert one.predicted.reason == "3 workers hide 40.0 ms of data wait behind compute"
    assert ("data wait", 40.0, "ms per step") in [(e.what, e.value, e.unit) for e in one.evidence]


@pytest.mark.parametrize("workers", [0, 1])
def test_workers_are_not_promised_where_others_use_their_cores(workers):
    def of(others):
        host = {"other_cpu_percent": others}
        all_ = found(waiting(40.0, workers=workers, batch=80.0, host=host))
        return all_.get("data.too_few_workers") or all_["data.loader_bound"]

    quiet, crowded = of(0.0), of(1550.0)
    assert (quiet.fix.name, crowded.fix) == ("workers", None)
    assert quiet.settings
    assert not crowded.settings
    assert "Other processes use the cores more workers need." in crowded.advice


def test_a_wait_below_two_percent_is_no_bottleneck():
    assert found(waiting(0.3)) == {}


def test_the_fewest_workers_that_do_as_well_are_recommended():
    """The replay gains from 3 workers what it gains from 16, and says how much."""
    given = case("cuda", waiting(40.0), None, after=24.0)
    (one,) = findings_of("data.loader_bound", given)
    assert str(one.fix) == "workers=3"
    assert one.predicted.step_ms == pytest.approx(24.0)
    assert len(given.model.asked) == 3  # 3, 6 and 16 workers were tried


def test_more_workers_are_recommended_where_the_replay_gains_from_them():
    steps = iter([40.0, 30.0, 22.0])
    given = case("cuda", waiting(40.0), None, after=lambda *changes: next(steps))
    assert str(findings_of("data.loader_bound", given)[0].fix) == "workers=16"


def test_random_transforms_make_workers_numeric():
    parts = (
        part("RandomCrop", "transform", 0.9, 1.0),
        part("default_collate", "collate", 0.1, 0.1),
    )
    one = found(waiting(40.0, pipeline=[dataset(40.0, *parts)]))["data.loader_bound"]
    assert one.kind == "numeric"


def test_where_workers_gain_nothing_the_costliest_part_is_to_be_made_cheaper():
    document = waiting(40.0, workers=16, batch=900.0)
    one = found(document)["data.loader_bound"]
    assert one.fix is None
    assert "train.py:22" in one.advice
    assert one.predicted.low == 1.0
    assert "took half as long" in one.predicted.reason


def test_samples_that_come_again_can_be_kept():
    """A replay in which workers gain nothing: the cores are taken."""
    document = waiting(40.0, sites=[site("epoch_start", 50, 1.0, count=4)])

    def replayed(change):
        return 30.0 if "batch_time" in change.__qualname__ else 60.0

    given = case("cuda", document, None, after=replayed)
    (one,) = findings_of("data.loader_bound", given)
    assert str(one.fix) == "cache"
    assert "epochs 2 to 4" in one.predicted.reason


def test_gradient_accumulation_counts_all_batches_of_a_step():
    document = waiting(40.0, batch=10.0, steps={"samples_per_step": 128.0})
    evidence = {e.what: e.value for e in found(document)["data.loader_bound"].evidence}
    assert evidence["making a batch in one process"] == pytest.approx(40.0)


def test_the_largest_loader_of_the_busiest_dataset_is_the_one_that_trains():
    loaders = [loader(num_workers=0, samples=100, line=41), loader(num_workers=0, line=40)]
    one = found(waiting(40.0, loaders=loaders))["data.loader_bound"]
    assert one.where[-1] == Place(PROGRAM, 40)


def test_too_few_workers():
    document = waiting(20.0, workers=2, batch=80.0)
    result = found(document)
    assert set(result) == {"data.too_few_workers"}
    one = result["data.too_few_workers"]
    assert str(one.fix) == "workers=5"
    assert one.predicted.step_ms == pytest.approx(20.0)
    assert "80.0 ms per batch" in one.why


def test_workers_are_not_more_than_cores():
    config = {"machine": {"cpu": {"usable_cores": 4}}}
    one = found(waiting(600.0, config=config))["data.loader_bound"]
    assert str(one.fix) == "workers=4"


@pytest.mark.parametrize(
    ("share", "workers"), [(None, 4), (0.9, 4), (0.5, 8), (0.1, 16), (0.0, 16)]
)
def test_workers_that_wait_for_storage_may_be_more_than_cores(share, workers):
    config = {"machine": {"cpu": {"usable_cores": 4}}}
    slow = dataset(600.0, processor_share=share)
    one = found(waiting(600.0, config=config, pipeline=[slow]))["data.loader_bound"]
    assert str(one.fix) == f"workers={workers}"
    cores = {e.what: e.value for e in one.evidence}["free cores"]
    assert cores == 4


def test_waiting_workers_are_no_more_than_hide_the_wait():
    config = {"machine": {"cpu": {"usable_cores": 4}}}
    slow = dataset(100.0, processor_share=0.05)
    one = found(waiting(100.0, config=config, pipeline=[slow]))["data.loader_bound"]
    assert str(one.fix) == "workers=6"


def test_workers_that_mostly_wait_are_not_too_many():
    config = {"machine": {"cpu": {"usable_cores": 4}}, "switches": {"threads": 4}}
    made = [dataset(30.0, processor_share=0.2)]
    document = waiting(0.2, device="cpu", workers=16, batch=30.0, config=config, pipeline=made)
    assert not found(document, "cpu")
    made = [dataset(30.0, processor_share=0.6)]
    document = waiting(0.2, device="cpu", workers=16, batch=30.0, config=config, pipeline=made)
    one = found(document, "cpu")["data.too_many_workers"]
    assert "18.0 ms of a core" in one.why


def test_more_workers_than_cores_are_too_many():
    config = {"machine": {"cpu": {"usable_cores": 4}}, "switches": {"threads": 4}}
    document = waiting(0.2, device="cpu", workers=16, batch=30.0, config=config)
    result = found(document, "cpu")
    assert set(result) == {"data.too_many_workers"}
    assert result["data.too_many_workers"].title == "16 workers share 4 cores"
    assert str(result["data.too_many_workers"].settings[0]) == "num_workers=3"
    assert result["data.too_many_workers"].fix is None


def test_many_workers_that_cost_nothing_are_left_alone():
    config = {"machine": {"cpu": {"usable_cores": 4}}}
    assert found(waiting(0.2, workers=16, batch=30.0, config=config)) == {}


def test_epochs_that_start_their_workers_anew():
    document = waiting(
        0.2,
        workers=4,
        batch=20.0,
        loaders=[loader(persistent_workers=False)],
        account_s={"epoch_start": 20.0},
        sites=[site("epoch_start", 50, 15000.0, count=10)],
    )
    result = found(document)
    assert set(result) == {"data.no_persistent_workers"}
    one = result["data.no_persistent_workers"]
    assert (str(one.fix), one.scope, one.kind) == ("persistent", "run", "exact")
    run_s = sum(v for k, v in document["account_s"].items() if k != "window")
    assert one.share == pytest.approx(9 * (2.0 - 0.02) / run_s)
    assert "2,000 ms at the start of each epoch" in one.why


@pytest.mark.parametrize("changes", [{"persistent_workers": True}, {"num_workers": 0}])
def test_epoch_starts_without_new_workers_are_no_such_case(changes):
    document = waiting(
        0.2,
        loaders=[loader(**({"persistent_workers": False} | changes))],
        account_s={"epoch_start": 20.0},
        sites=[site("epoch_start", 50, 15000.0, count=10)],
    )
    assert found(document) == {}


def test_an_iterator_in_every_step():
    document = waiting(
        30.0,
        batch=10.0,
        loaders=[loader(persistent_workers=False)],
        sites=[site("epoch_start", 50, 6000.0, count=200)],
    )
    result = found(document)
    assert set(result) == {"data.no_persistent_workers"}
    one = result["data.no_persistent_workers"]
    assert one.fix is None
    assert "iter(loader)" in one.advice
    assert one.predicted.step_ms == pytest.approx(20.0)


def test_batches_that_come_late_now_and_then():
    document = waiting(2.0, batch=20.0, loaders=[loader(prefetch_factor=1)])
    result = found(document)
    assert set(result) == {"data.no_prefetch"}
    assert result["data.no_prefetch"].confidence == "medium"


def test_taking_over_batches_that_are_there_is_no_lateness():
    document = waiting(2.0, batch=20.0, loaders=[loader(prefetch_factor=1)])
    given = case("cuda", document, None, None, None)
    tasks = SimpleNamespace(loader=SimpleNamespace(hand_over_ms=1.9))
    steady = replace(given, model=SimpleNamespace(tasks=tasks))
    assert [one.id for one in findings_of("data.no_prefetch", given)] == ["data.no_prefetch"]
    assert list(findings_of("data.no_prefetch", steady)) == []


def test_short_epochs_explain_late_batches_better():
    document = waiting(2.0, batch=20.0, loaders=[loader()], account_s={"epoch_start": 20.0})
    assert "data.no_prefetch" not in found(document)


def large(workers=4, mb=19.0, fixes=(), **more):
    """A run whose workers hand over large batches."""
    steps = {"mean_ms": 30.0, "batch_bytes": mb * 1e6}
    return waiting(10.0, workers=workers, batch=80.0, steps=steps, fixes=list(fixes), **more)


def test_large_batches_in_fresh_memory_are_told_with_what_it_takes():
    one = found(large(), after=24.0, rules=["data.fresh_memory"])["data.fresh_memory"]
    assert one.title == "Workers allocate 19 MB of shared memory per batch"
    assert "17.1 ms in the worker" in one.why
    assert "75% of both can be saved" in one.why
    assert str(one.fix) == "recycle"
    assert one.predicted.speedup == pytest.approx(30 / 24)
    assert one.share == pytest.approx(0.2)
    assert one.where == (Place(PROGRAM, 40),)


@pytest.mark.parametrize(
    ("document", "after"),
    [
        (large(workers=0), 24.0),
        (large(mb=0.5), 24.0),
        (large(), 29.7),  # too little
        (large(), None),  # nothing tells what it would gain
        (large(fixes=[{"name": "recycle", "state": "applied"}]), 24.0),
    ],
)
def test_fresh_memory_is_not_told_where_it_does_not_matter(document, after):
    assert found(document, after=after, rules=["data.fresh_memory"]) == {}


def test_tiny_samples_are_not_a_matter_of_workers():
    parts = (part("default_collate", "collate", 0.55, 0.01), part("rest", "rest", 0.45, 0.01))
    made = dataset(40.0, *parts, ms_per_sample=0.02)
    result = found(waiting(40.0, pipeline=[made]))
    assert set(result) == {"data.tiny_samples"}
    one = result["data.tiny_samples"]
    assert one.fix is None
    assert one.title == "Python collates 2,000 tiny samples per batch"
    assert one.predicted.step_ms == pytest.approx(26.0)


def test_a_small_batch_of_fast_samples_is_not_tiny():
    made = dataset(0.8, ms_per_sample=0.025)
    assert set(found(waiting(0.8, pipeline=[made]))) == {"data.loader_bound"}


def test_reading_is_known_by_its_source():
    document = waiting(40.0)
    lines = {22: "        data = np.load(self.paths[index])"}
    one = found(document, source=lines)["data.slow_storage"]
    assert one.where[0] == Place(PROGRAM, 22)
    assert str(one.fix) == "workers=3"
    assert "LMDB" in one.advice
    assert set(found(document, source={22: "y = x * 2"})) == {"data.loader_bound"}


def photos(decoding=0.6, reading=0.02, batch=40.0, **changes):
    """Images that are decoded in line 22, of a dataset that a core mostly works for."""
    parts = (
        part("decoding", "work", decoding, 1.2, line=22, work="decoding"),
        part("reading", "work", reading, 0.04, line=21, work="reading"),
        part("Resize", "transform", 0.98 - decoding - reading, 0.5, line=31, work="augmenting"),
        part("default_collate", "collate", 0.02, 0.04),
    )
    return dataset(batch, *parts, **({"processor_share": 0.9} | changes))


LAZY = {22: '        image = Image.open(self.paths[index]).convert("RGB")'}


def test_decoding_is_not_called_reading():
    result = found(waiting(40.0, pipeline=[photos()]), source=LAZY)
    assert set(result) == {"data.slow_decoding"}
    one = result["data.slow_decoding"]
    assert one.title == "Decoding takes 60% of the time to make a batch"
    assert one.where[0] == Place(PROGRAM, 22)
    assert "Decode once" in one.advice
    assert "faster disk gains nothing" in one.advice
    assert str(one.fix) == "workers=3"
    evidence = {e.what: e.value for e in one.evidence}
    assert evidence["decoding a sample"] == pytest.approx(0.75)


def test_a_decoder_that_mostly_waits_waits_for_storage():
    result = found(waiting(40.0, pipeline=[photos(processor_share=0.1)]))
    assert set(result) == {"data.slow_storage"}
    assert "/dev/shm" in result["data.slow_storage"].advice
    waiting_for_cores = [photos(processor_share=1.0)]  # computing, or waiting for its turn
    assert set(found(waiting(40.0, pipeline=waiting_for_cores))) == {"data.slow_decoding"}


def test_too_few_workers_are_blamed_before_decoding_but_not_before_reading():
    few = {"workers": 1, "batch": 80.0}
    made = photos(batch=80.0)
    assert "data.too_few_workers" in found(waiting(40.0, **few, pipeline=[made]))
    made = photos(decoding=0.1, reading=0.6, batch=80.0)
    assert "data.slow_storage" in found(waiting(40.0, **few, pipeline=[made]))


@pytest.mark.parametrize(
    ("line", "work"),
    [
        ("x = np.load(path)", "reading"),
        ("with open(path, 'rb') as file:", "reading"),
        ("image = Image.open(path)", None),  # the header only
        ("image = Image.open(path).convert('RGB')", "decoding"),
        ("image.load()", "decoding"),
        ("image = cv2.imread(path)", "decoding"),
        ("record = pickle.loads(transaction.get(key))", "decoding"),
        ("x = x * 2", None),
    ],
)
def test_what_a_line_does_is_known_by_its_source(line, work):
    assert work_of_line(line) == work


@pytest.mark.parametrize(
    ("module", "function", "work"),
    [
        ("PIL.ImageFile", "ImageFile.load", "decoding"),
        ("PIL.WebPImagePlugin", "WebPImageFile.load", "decoding"),
        ("PIL.Image", "open", "reading"),
        ("PIL.Image", "Image.resize", "augmenting"),
        ("torchvision.io.image", "decode_jpeg", "decoding"),
        ("torchvision.io.image", "read_file", "reading"),
        ("torchvision.transforms.v2._geometry", "Resize.transform", "augmenting"),
        ("numpy.lib._npyio_impl", "load", "reading"),
        ("pathlib", "Path.read_bytes", "reading"),
        ("albumentations.core.composition", "Compose.__call__", "augmenting"),
        ("PIL.Image", "Image.load", None),  # of what is decoded already
        ("torch.utils.data.dataloader", "DataLoader.__iter__", None),
    ],
)
def test_what_a_librarys_function_does_is_known_by_its_name(module, function, work):
    assert work_of_call(module, function) == work


def test_augmentation_for_the_gpu_only_where_workers_cannot_hide_it():
    parts = (part("Resize", "transform", 0.7, 1.0), part("default_collate", "collate", 0.3, 0.1))
    few = {"machine": {"cpu": {"usable_cores": 4}}}
    document = waiting(180.0, workers=4, pipeline=[dataset(800.0, *parts)], config=few)
    one = found(document)["data.gpu_augmentation"]
    assert one.predicted.step_ms == pytest.approx(60.0)
    assert "data.gpu_augmentation" not in found(waiting(40.0, pipeline=[dataset(40.0, *parts)]))
    assert "data.gpu_augmentation" not in found(document, "cpu")


def test_more_threads_than_cores():
    config = {"switches": {"threads": 64}, "machine": {"cpu": {"usable_cores": 8}}}
    document = show("cpu", config=config, loaders=[], pipeline=[])
    result = found(document, "cpu")
    assert set(result) == {"data.cpu_oversubscribed"}
    one = result["data.cpu_oversubscribed"]
    assert (str(one.fix), one.kind, one.confidence) == ("threads=8", "numeric", "high")
    assert found(show("cuda", config=config, loaders=[], pipeline=[])) == {}


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_trace_alone_tells_that_it_waits_for_data(device):
    waits = {
        "cuda": {"idle_ns": {"loader": 72_000_000}},
        "cpu": {"critical_path": {"by_category": [{"category": "data loading", "ns": 72_000_000}]}},
    }
    given = case(device, None, trace(device, **waits[device]))
    (one,) = findings_of("data.loader_bound", given)
    assert one.share == pytest.approx(0.5)
    assert one.predicted.step_ms == pytest.approx(12.0)
    assert one.confidence == "medium"
