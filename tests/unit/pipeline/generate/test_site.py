"""The site is the same for one seed, and few members and items have most of the attention."""

import numpy as np

from headrace.pipeline.generate.site import chosen, long_tail, make_site, rhythm_times


def test_one_seed_gives_one_site():
    one, same, other = make_site(3, 500), make_site(3, 500), make_site(4, 500)
    assert (one.habit_hour == same.habit_hour).all() and (one.author == same.author).all()
    assert not (one.author == other.author).all()
    assert one.clients == same.clients


def test_bots_have_addresses_of_their_own():
    site = make_site(1, 100)
    bots = np.concatenate(site.bots[:4])
    assert len(set(bots.tolist())) == 12 and bots.min() == site.visitors
    assert len(site.clients) == len(site.visitor_names) == site.visitors + 12
    assert site.bots.spam_members.max() == site.members - 1


def test_pages_are_numbered_in_order():
    site = make_site(1, 100)
    some = np.array([0, 99], np.int32)
    assert site.pages.take(site.page_of_item(some)).to_pylist() == ['"/items/0"', '"/items/99"']
    assert site.pages.take(site.page_of_member(some)).to_pylist() == [
        '"/members/0"',
        '"/members/99"',
    ]
    assert site.pages.take(site.page_of_category(some[:1])).to_pylist() == ['"/c/books"']
    first, count = site.outside
    assert site.referrers[first].as_py().startswith('"https://')
    assert first + count == len(site.referrers)


def test_a_long_tail():
    rng = np.random.default_rng(1)
    counts = np.sort(np.bincount(chosen(rng, long_tail(rng, 1000), 100_000), minlength=1000))[::-1]
    assert counts[0] > 20 * counts[500] and counts[:100].sum() > 0.45 * counts.sum()


def test_the_evening_is_busier_than_the_night():
    hours = np.bincount(rhythm_times(np.random.default_rng(1), 100_000) // 3_600_000, minlength=24)
    assert len(hours) == 24 and hours[20] > 8 * hours[3]
