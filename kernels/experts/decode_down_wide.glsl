// decode_down_wide.glsl - experts/decode_down.comp with rows on lanes: all lanes walk the parts of the long vector together, so
// a part's addresses are fetched once.

// The down projection that part k of the long vector meets: an expert's, or behind the last the shared one.
Matrix part_matrix(uint token, uint k)
{
    bool routed = k < a.top_k;
    uvec2 expert = Addrs(a.table).v[U32s(a.idx).v[token * a.top_k + min(k, a.top_k - 1)]];
    Matrix m;
    m.weight = routed ? addr_add(expert, a.down_w) : a.shared_w;
    m.scales = routed ? addr_add(expert, a.down_s) : a.shared_s;
    m.biases = routed ? addr_add(expert, a.down_b) : a.shared_b;
    m.format = routed ? a.format : a.shared_format;
    m.rows = a.hidden;
    m.cols = routed ? a.inner : a.shared_inner;
    return m;
}

void fetch_tile(uint token, uint row, uint from, uint n)
{
}

// Adds the products of the tile that starts at column `from` of the long vector and has n columns.
void add_tile(inout float acc[MAX_ACC], uint token, uint row, uint from, uint n)
{
    uint per_part = a.inner / UNIT; // of a routed one; the shared part comes last and may be longer
    uint end = (from + n) / UNIT;
    for (uint u = from / UNIT; u < end;) {
        uint k = min(u / per_part, a.top_k);
        uint stop = k < a.top_k ? min(end, (k + 1) * per_part) : end;
        Matrix m = part_matrix(token, k);
        for (; u < stop; u++)
            add_unit(acc, 0, m, row, u - k * per_part, u - from / UNIT);
    }
}
