"""Parses the fields of ``value.schema``, written as DDL.

Only Spark's JVM has a parser of DDL, and it reports errors in the schema of the whole table,
which the user did not write. So the option is parsed here, alone, and errors name its field.
"""

import re

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headrace.model.spelling import did_you_mean
from headrace.spark.failures import BadOption

_TYPES: dict[str, DataType] = {
    "BOOLEAN": BooleanType(),
    "TINYINT": ByteType(),
    "BYTE": ByteType(),
    "SMALLINT": ShortType(),
    "SHORT": ShortType(),
    "INT": IntegerType(),
    "INTEGER": IntegerType(),
    "BIGINT": LongType(),
    "LONG": LongType(),
    "FLOAT": FloatType(),
    "REAL": FloatType(),
    "DOUBLE": DoubleType(),
    "STRING": StringType(),
    "BINARY": BinaryType(),
    "DATE": DateType(),
    "TIMESTAMP": TimestampType(),
    "TIMESTAMP_LTZ": TimestampType(),
    "TIMESTAMP_NTZ": TimestampNTZType(),
}
_DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
_NESTED = ("ARRAY", "MAP", "STRUCT")
_TOKEN = re.compile(
    r"""\s*(?: (?P<quoted>`(?:[^`]|``)+`)
             | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
             | (?P<word>\w+)
             | (?P<mark>[<>(),:]) )""",
    re.VERBOSE,
)
_END = ""


def parse_fields(ddl: str) -> StructType:
    """``id BIGINT, tags ARRAY<STRING>`` as a struct. Raises BadOption for anything else."""
    return StructType(_Parser(ddl).fields(_END))


class _Parser:
    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._tokens: list[str] = []
        position, end = 0, len(ddl.rstrip())
        while position < end:
            found = _TOKEN.match(ddl, position)
            if found is None:
                raise BadOption(f"value.schema: cannot read {ddl[position:].strip()[:40]!r}")
            self._tokens.append(found[0].strip())
            position = found.end()
        self._tokens.append(_END)
        self._at = 0

    @property
    def _next(self) -> str:
        return self._tokens[self._at]

    def _take(self) -> str:
        token = self._next
        self._at += 1
        return token

    def _took(self, *words: str) -> bool:
        """Steps over these tokens if they come next."""
        ahead = [token.upper() for token in self._tokens[self._at : self._at + len(words)]]
        if ahead != list(words):
            return False
        self._at += len(words)
        return True

    def _expect(self, token: str, after: str) -> None:
        if not self._took(token):
            expected = "the end" if token == _END else repr(token)
            raise self._bad(f"expected {expected} after {after}")

    def _bad(self, what: str) -> BadOption:
        here = f"{self._next!r}" if self._next else "the end"
        return BadOption(f"value.schema: {what}, found {here} in {self._ddl[:200]!r}")

    def fields(self, end: str, outer: str = "") -> list[StructField]:
        """Fields up to the token ``end``, which is taken."""
        found = [self._field(outer)]
        while self._took(","):
            found.append(self._field(outer))
        self._expect(end, f"field {found[-1].name!r}")
        return found

    def _field(self, outer: str) -> StructField:
        token = self._take()
        if not re.fullmatch(r"\w+|`.*`", token, re.DOTALL):
            self._at -= 1
            raise self._bad("expected the name of a field")
        name = token[1:-1].replace("``", "`") if token.startswith("`") else token
        self._took(":")
        kind = self._type(f"{outer}{name}")
        nullable = not self._took("NOT", "NULL")
        if self._took("COMMENT"):
            self._take()
        return StructField(name, kind, nullable)

    def _type(self, field: str) -> DataType:
        token = self._take()
        name = token.upper()
        if name in _TYPES:
            return _TYPES[name]
        if name in _DECIMALS:
            return self._decimal(field)
        if name == "ARRAY":
            self._expect("<", "ARRAY")
            item = self._type(f"{field}[]")
            self._expect(">", "the items of ARRAY")
            return ArrayType(item)
        if name == "MAP":
            self._expect("<", "MAP")
            key = self._type(f"{field}[]")
            self._expect(",", "the keys of MAP")
            value = self._type(f"{field}[]")
            self._expect(">", "the values of MAP")
            return MapType(key, value)
        if name == "STRUCT":
            self._expect("<", "STRUCT")
            return StructType(self.fields(">", f"{field}."))
        if token == _END:
            raise BadOption(f"value.schema: field {field!r} has no type")
        known = [*_TYPES, *_DECIMALS, *_NESTED]
        raise BadOption(
            f"value.schema: field {field!r} has the unknown type {token!r}"
            f"{did_you_mean(name, known)}"
        )

    def _decimal(self, field: str) -> DecimalType:
        if not self._took("("):
            return DecimalType()
        numbers = [self._take()]
        if self._took(","):
            numbers.append(self._take())
        self._expect(")", "the digits of DECIMAL")
        if not all(number.isdecimal() for number in numbers):
            raise BadOption(
                f"value.schema: field {field!r} is DECIMAL({', '.join(numbers)}); give whole "
                "numbers, like DECIMAL(10, 2)"
            )
        precision, scale = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0
        if not scale <= precision <= 38 or not precision:
            raise BadOption(
                f"value.schema: field {field!r} is DECIMAL({precision}, {scale}); a decimal has 1 "
                "to 38 digits, and a scale of at most as many"
            )
        return DecimalType(precision, scale)
