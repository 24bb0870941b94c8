// decode_down_lanes.glsl - experts/decode_down.comp with columns on lanes: neighbouring lanes may stand in different experts.
// The way to a routed weight is choice, table, weight, three loads that wait for each other; both steps in flight go
// it together. Where the shared expert is stored as the routed ones are, it is one part more of the same walk.

// The columns that a walk covers, [from, from + n) of the long vector.
struct Walk {
    uint format, from, n;
};

// The first walk of the tile [from, from + n) takes the routed columns, or everything; the second what is left.
Walk first_walk(uint from, uint n)
{
    bool all = a.format == a.shared_format, none = routed_in_tile(from, n) == 0;
    return Walk(none ? a.shared_format : a.format, from, all || none ? n : routed_in_tile(from, n));
}

void load_step_at(out Step s, const uint format, uint token, uint row, uint piece)
{
    uint cols = 4 * piece_vecs(format), k = min(piece * cols / a.inner, a.top_k);
    bool routed = k < a.top_k;
    uint place = piece - k * (a.inner / cols);
    uvec2 expert = Addrs(a.table).v[U32s(a.idx).v[token * a.top_k + min(k, a.top_k - 1)]];
    uvec2 weight = routed ? addr_add(expert, a.down_w) : a.shared_w;
    uvec2 scales = routed ? addr_add(expert, a.down_s) : a.shared_s;
    uvec2 biases = routed ? addr_add(expert, a.down_b) : a.shared_b;
    s.odd = 0;
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        load_piece(s, r, format, weight, scales, biases,
                   min(row + r, a.hidden - 1) * (routed ? a.inner : a.shared_inner), place);
}

void fetch_walk_as(const uint format, uint token, uint row, Walk w)
{
    uint cols = 4 * piece_vecs(format), pieces = w.n / cols, i = first_piece();
    if (i < pieces)
        load_step_at(now, format, token, row, w.from / cols + i);
    if (i + piece_step() < pieces)
        load_step_at(next, format, token, row, w.from / cols + i + piece_step());
}

void fetch_walk(uint token, uint row, Walk w)
{
    BY_FORMAT(w.format, fetch_walk_as(FORMAT, token, row, w))
}

// tile: where the tile starts.
void add_walk_as(inout float acc[MAX_ACC], const uint format, uint token, uint row, Walk w, uint tile)
{
    uint cols = 4 * piece_vecs(format), pieces = w.n / cols;
    [[dont_unroll]] for (uint i = first_piece(); i < pieces; i += piece_step()) {
        add_step(acc, format, now, (w.from - tile + i * cols) / 4);
        now = next;
        if (i + 2 * piece_step() < pieces)
            load_step_at(next, format, token, row, w.from / cols + i + 2 * piece_step());
    }
}

void add_walk(inout float acc[MAX_ACC], uint token, uint row, Walk w, uint tile)
{
    BY_FORMAT(w.format, add_walk_as(acc, FORMAT, token, row, w, tile))
}

void fetch_tile(uint token, uint row, uint from, uint n)
{
    fetch_walk(token, row, first_walk(from, n));
}

// Adds the products of the tile that starts at column `from` of the long vector and has n columns.
void add_tile(inout float acc[MAX_ACC], uint token, uint row, uint from, uint n)
{
    Walk w = first_walk(from, n);
    [[dont_unroll]] for (uint done = 0;;) {
        add_walk(acc, token, row, w, from);
        done += w.n;
        if (done >= n)
            break;
        w = Walk(a.shared_format, from + done, n - done);
        fetch_walk(token, row, w);
    }
}
