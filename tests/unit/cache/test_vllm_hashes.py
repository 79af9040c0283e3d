"""Hashes that vLLM 0.32.0 itself gave, executed; and bad input."""

import pytest

from kvscope.cache.vllm_hashes import block_hashes, event_hash, root_hash
from kvscope.errors import UsageError


@pytest.mark.parametrize(
    ("algorithm", "root", "first", "first_event", "second", "second_event", "salted"),
    [
        (
            "sha256",
            "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198",
            "fe8fa5dda3210d0ca2031e37cbe3b001186773cd1c710beb2d45fcb51d434798",
            3262291359910021016,
            "8be7aaa33831156d316f1f463ae57e643deb63f42e633e2d631df88815cc4629",
            7142137847444424233,
            "23bb70ca91a3697ed579080cc3a4d36b53c7348f3a8a63c7b5b67491d85e237d",
        ),
        (
            "sha256_cbor",
            "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0",
            "dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749",
            2233398808101521225,
            "c300ec275d7bf08af8fc63e76cdc0086911bbc7091e03c5cf892553bef84ef0c",
            17911472383915781900,
            "67e9f72522b34138a0f4be0e3a68d9d49b1e50aea0af7762f6170ad7eebbdeaf",
        ),
    ],
)
def test_hashes_of_vllm(
    algorithm: str,
    root: str,
    first: str,
    first_event: int,
    second: str,
    second_event: int,
    salted: str,
) -> None:
    assert root_hash(algorithm).hex() == root
    hashes = block_hashes(range(47), 16, algorithm=algorithm)
    assert [each.hex() for each in hashes] == [first, second]
    assert [event_hash(each) for each in hashes] == [first_event, second_event]
    with_salt = block_hashes(range(32), 16, algorithm=algorithm, salt="s")
    assert with_salt[0].hex() == salted
    assert with_salt[1] not in hashes


def test_what_cannot_be_hashed() -> None:
    with pytest.raises(UsageError, match="no hash algorithm 'md5'; known are sha256, sha256_cbor"):
        block_hashes(range(4), 4, algorithm="md5")
    with pytest.raises(UsageError, match="at least one token, not 0"):
        block_hashes(range(4), 0)
    assert block_hashes([], 4) == []
