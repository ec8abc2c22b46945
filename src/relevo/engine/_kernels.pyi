class PoolLayer:
    def __init__(self, base: int, page_tokens: int, kv_heads: int, head_dim: int) -> None: ...

def rotate_and_store(
    is_bfloat16: bool,
    qkv: int,
    cos: int,
    sin: int,
    positions: int,
    slots: int,
    tokens: int,
    heads: int,
    pool: PoolLayer,
    /,
) -> None: ...
def decode_attention(
    is_bfloat16: bool,
    q: int,
    q_stride: int,
    out: int,
    pages: int,
    max_pages: int,
    lengths: int,
    rows: int,
    heads: int,
    scale: float,
    threads: int,
    pool: PoolLayer,
    /,
) -> None: ...
def gather(
    is_bfloat16: bool, keys: int, values: int, pages: int, length: int, pool: PoolLayer, /
) -> None: ...
def linear(
    is_bfloat16: bool,
    x: int,
    weight: int,
    bias: int,
    out: int,
    rows: int,
    inputs: int,
    outputs: int,
    threads: int,
    /,
) -> None: ...
