"""The order of findings."""

from itertools import permutations

from diagnosing import finding
from msgspec.structs import replace

from stepscope.diagnose.ranking import gain_share, is_bottleneck, ranked


def order(*findings):
    return [one.id for one in ranked(findings)]


def test_the_larger_gain_comes_first():
    assert order(finding("a.small", 90), finding("a.large", 40)) == ["a.large", "a.small"]


def test_of_gains_within_a_tenth_the_smaller_effort_comes_first():
    hard = finding("a.hard", 50, effort="many lines")
    some = finding("a.some", 51, effort="a few lines")
    easy = finding("a.easy", 54, effort="one argument")
    assert order(hard, some, easy) == ["a.easy", "a.some", "a.hard"]


def test_a_clearly_larger_gain_is_worth_more_effort():
    hard = finding("a.hard", 50, effort="many lines")
    easy = finding("a.easy", 60, effort="one line")
    assert order(easy, hard) == ["a.hard", "a.easy"]


def test_of_equal_effort_the_more_exact_comes_first():
    numeric = finding("a.numeric", 50, kind="numeric")
    exact = finding("b.exact", 52, kind="exact")
    assert order(numeric, exact) == ["b.exact", "a.numeric"]


def test_of_the_same_kind_the_surer_comes_first():
    unsure = finding("a.unsure", 50, confidence="low")
    sure = finding("b.sure", 52, confidence="high")
    assert order(unsure, sure) == ["b.sure", "a.unsure"]


def test_an_unpredicted_finding_counts_half_of_what_it_concerns():
    told = finding("a.told", share=0.6)
    assert gain_share(told) == 0.3
    assert order(told, finding("b.more", 60), finding("c.less", 80)) == [
        "b.more",
        "a.told",
        "c.less",
    ]


def test_below_two_percent_nothing_is_a_bottleneck():
    assert not is_bottleneck(finding("a.b", 98.5, share=0.5))
    assert is_bottleneck(finding("a.b", 97.9))
    assert not is_bottleneck(finding("a.b", share=0.019))
    assert is_bottleneck(finding("a.b", share=0.021))


def test_a_predicted_loss_is_worth_nothing():
    assert gain_share(finding("a.b", 110)) == 0


def test_the_order_does_not_depend_on_the_order_of_the_rules():
    found = [
        finding("a.one", 50, effort="one line"),
        finding("a.two", 50, effort="one line"),
        finding("a.three", 54, kind="numeric"),
        finding("a.four", share=0.4),
        finding("a.five", 96),
    ]
    orders = {tuple(order(*some)) for some in permutations(found)}
    assert len(orders) == 1


def test_a_promise_that_may_be_no_gain_is_no_bottleneck():
    sure = finding("a.b", 95.0)
    assert is_bottleneck(sure)
    assert not is_bottleneck(replace(sure, predicted=replace(sure.predicted, low=1.0)))
