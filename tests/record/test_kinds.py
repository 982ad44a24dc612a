"""Words of documents are those their producers write."""

from stepscope.analyze.replay.changes import wait_kind_of
from stepscope.analyze.timeline.idle import IDLE_CAUSES
from stepscope.hardware.gpus import throttle_reasons
from stepscope.record.kinds import HostWait, IdleCause, ThrottleReason


def test_every_throttle_reason_is_known():
    assert throttle_reasons(~0) == list(ThrottleReason)


def test_every_idle_cause_is_known():
    assert list(IDLE_CAUSES) == list(IdleCause)


def test_every_wait_can_be_replayed():
    assert [wait for wait in HostWait if wait_kind_of(wait) is None] == []
