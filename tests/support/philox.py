"""A scalar reference of the engine's random words: Philox4x32-10 in Python's unbounded integers."""

UINT32 = 2**32 - 1


def philox(counter, key):
    """Philox4x32-10 from the paper, with Python's unbounded integers."""
    key = list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * counter[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * counter[2], 2**32)
        counter = (high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0)
        key = [(key[0] + 0x9E3779B9) & UINT32, (key[1] + 0xBB67AE85) & UINT32]
    return counter


def words(count, seed=0, micro_batch=0, replica=0, op_id=0):
    """The words of one operation, in order."""
    key = (seed & UINT32, seed >> 32)
    high = replica | (micro_batch >> 32) << 16
    blocks = [
        philox((block, op_id, micro_batch & UINT32, high), key) for block in range(-(-count // 4))
    ]
    return [word for block in blocks for word in block][:count]
