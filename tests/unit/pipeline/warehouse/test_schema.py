"""Schema checks: what is added, and what never reaches a table."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.warehouse.schema import compare, fields_of


def field(name, kind="long", nullable=True, **metadata):
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def struct(*fields):
    return {"type": "struct", "fields": list(fields)}


def array(kind, contains_null=True):
    return {"type": "array", "elementType": kind, "containsNull": contains_null}


kinds = st.recursive(
    st.sampled_from(["long", "string", "binary", "timestamp", "decimal(10,2)"]),
    lambda inner: st.one_of(
        st.builds(array, inner, st.booleans()),
        st.builds(lambda kind: struct(field("inner", kind)), inner),
        st.builds(
            lambda kind: {
                "type": "map", "keyType": "string", "valueType": kind, "valueContainsNull": True
            },
            inner,
        ),
    ),
    max_leaves=4,
)  # fmt: skip
schemas = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3), st.tuples(kinds, st.booleans()), max_size=6
).map(lambda found: [field(name, kind, nullable) for name, (kind, nullable) in found.items()])


def test_fields_come_from_deltas_json():
    assert fields_of('{"type":"struct","fields":[{"name":"a","type":"long"}]}') == [
        {"name": "a", "type": "long"}
    ]


@given(schemas)
def test_equal_columns_fit_in_any_order(schema):
    assert compare(schema, list(reversed(schema))) == ((), ())


@given(schemas, schemas)
def test_all_differences_are_found(table, batch):
    found = compare(table, batch)
    of_table = {one["name"]: one for one in table}
    of_batch = {one["name"]: one for one in batch}
    assert [one["name"] for one in found.added] == [n for n in of_batch if n not in of_table]
    assert all(one["nullable"] for one in found.added)
    differing = [name for name in of_table if of_batch.get(name) != of_table[name]]
    assert len(found.conflicts) == len(differing)
    for name, conflict in zip(differing, found.conflicts, strict=True):
        assert repr(name) in conflict


def test_a_new_column_is_nullable():
    found = compare([field("a")], [field("a"), field("b", nullable=False)])
    assert found.conflicts == ()
    assert found.added == (field("b"),)


def test_reasons_name_column_and_types():
    def reason(table, batch):
        (only,) = compare(table, batch).conflicts
        return only

    assert reason([field("a")], [field("a", "string")]) == (
        "column 'a' is long in the table and string in the batch"
    )
    assert reason([field("a")], []) == "column 'a' of the table is missing in the batch"
    assert reason([field("a")], [field("a", nullable=False)]) == (
        "column 'a' may be null in the table and is NOT NULL in the batch"
    )
    assert reason([field("a", nullable=False)], [field("a")]) == (
        "column 'a' is NOT NULL in the table and may be null in the batch"
    )
    assert reason([field("user")], [field("User")]) == (
        "column 'User' differs from column 'user' only in case"
    )
    assert reason([field("a", array("long"))], [field("a", array("long", False))]) == (
        "column 'a' is array<long> in the table and array<long not null> in the batch"
    )
    assert reason([field("a", struct(field("x")))], [field("a", struct(field("y")))]) == (
        "column 'a' is struct<x: long> in the table and struct<y: long> in the batch"
    )
    a_map = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}
    assert "map<string, long>" in reason([field("a", a_map)], [field("a")])


def test_comments_do_not_matter():
    table = [field("a", struct(field("x", comment="old")), comment="old")]
    assert compare(table, [field("a", struct(field("x")))]) == ((), ())


def test_two_new_columns_that_differ_only_in_case_conflict():
    assert compare([], [field("b"), field("B")]).conflicts == (
        "column 'B' differs from column 'b' only in case",
    )
