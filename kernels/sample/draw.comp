// sample/draw.comp - the second of two kernels, after sample/largest.comp: top-k, top-p, min-p and the draw
// of sample/sampler.h.
//
// All candidates, and with them the k first, are gathered in a list, in any order. If the list is short, each
// invocation has one id and adds up the weights of those before it. A long list is searched for the first id,
// in some order, at which the sum of the weights reaches a bound. The search goes by the digits of the number
// that gives the order, seven bits at a time: the sums of the weights for each digit say which digit the id
// has.
// Grid: one workgroup. Exact: weights are integers of 32 bits, their sums of 64.
// variants: plain each
#version 460
#include "lib/memory.glsl"
#include "lib/each.glsl"
#include "sample/weight.h"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 1024; // BINS or more

ARGS(sample_args)

#include "sample/largest.glsl"

const uint DIGIT = 7, BINS = 1 << DIGIT;
// Digits of a key, then those of an id.
const uint KEY_DIGITS = 5, ID_DIGITS = 3;

// ---- 64 bits: the low word, then the high one ----

uvec2 add64(uvec2 x, uvec2 y)
{
    uint carry, low = uaddCarry(x.x, y.x, carry);
    return uvec2(low, x.y + y.y + carry);
}

bool less64(uvec2 x, uvec2 y)
{
    return x.y < y.y || (x.y == y.y && x.x < y.x);
}

uvec2 product(uint x, uint y)
{
    uvec2 p;
    umulExtended(x, y, p.y, p.x);
    return p;
}

// ceil(sum * share / 2^32)
uvec2 share_of(uvec2 sum, uint share)
{
    uvec2 low = product(sum.x, share);
    return add64(product(sum.y, share), add64(uvec2(low.y, 0u), uvec2(low.x != 0u ? 1u : 0u, 0u)));
}

// floor(sum * random / 2^64)
uvec2 point_of(uvec2 sum)
{
    uvec2 low = product(sum.x, a.random_low), b = product(sum.y, a.random_low),
          c = product(sum.x, a.random_high);
    uvec2 middle = add64(add64(uvec2(low.y, 0u), uvec2(b.x, 0u)), uvec2(c.x, 0u));
    uvec2 high = add64(uvec2(b.y, 0u), uvec2(c.y, 0u));
    return add64(add64(product(sum.y, a.random_high), high), uvec2(middle.y, 0u));
}

// ---- the list ----

// Loads in flight at once; one takes as long as a thousand instructions.
const uint EACH = 8;
const uint BLOCKS = SAMPLE_MAX_IDS / SAMPLE_BLOCK;

shared uint n_list, least_key;
// the largest key of each block; blocks whose ids are in the list
shared uint top[BLOCKS], taken[BLOCKS], n_taken;

uint weight_of(uint key, uint max_key)
{
    return sample_weight(sample_exponent(sample_key_bits(key), sample_key_bits(max_key), a.scale));
}

// If k is small, no key below the k-th largest of the blocks' keys is among the k first.
void take_blocks(uint max_key)
{
    uint n_blocks = (a.n + SAMPLE_BLOCK - 1) / SAMPLE_BLOCK;
    for (uint i = gl_LocalInvocationID.x; i < n_blocks; i += WORKGROUP)
        top[i] = U32s(a.found).v[i * 4];
    if (gl_LocalInvocationID.x == 0) {
        n_list = n_taken = 0u;
        least_key = 1u;
    }
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < n_blocks && a.top_k > 0u &&
         a.top_k <= n_blocks; i += WORKGROUP) {
        uint rank = 1u;
        for (uint j = 0; j < n_blocks; j++)
            rank += top[j] > top[i] || (top[j] == top[i] && j < i) ? 1u : 0u;
        if (rank == a.top_k)
            least_key = max(top[i], 1u);
    }
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < n_blocks; i += WORKGROUP)
        if (top[i] >= least_key && weight_of(top[i], max_key) > 0u)
            taken[atomicAdd(n_taken, 1u)] = i;
    barrier();
}

void append(uint id, uint key, bool yes)
{
    uint before = subgroupExclusiveAdd(yes ? 1u : 0u), n = subgroupAdd(yes ? 1u : 0u), at = 0u;
    if (n == 0u)
        return;
    if (subgroupElect())
        at = atomicAdd(n_list, n);
    at = subgroupBroadcastFirst(at) + before;
    if (yes) {
        U32s(a.list).v[2 * at] = id;
        U32s(a.list).v[2 * at + 1] = key;
    }
}

void gather(uint max_key)
{
    take_blocks(max_key);
    for (uint first = 0; first < n_taken * SAMPLE_BLOCK; first += EACH * WORKGROUP) {
        uint id[EACH], key[EACH];
        [[unroll]] for (uint i = 0; i < EACH; i++) {
            uint at = first + i * WORKGROUP + gl_LocalInvocationID.x;
            id[i] = at < n_taken * SAMPLE_BLOCK ? taken[at / SAMPLE_BLOCK] * SAMPLE_BLOCK + at % SAMPLE_BLOCK
                : a.n;
            key[i] = U32s(a.keys).v[min(id[i], a.n - 1)];
        }
        [[unroll]] for (uint i = 0; i < EACH; i++)
            append(id[i], key[i], id[i] < a.n && key[i] >= least_key && weight_of(key[i], max_key) > 0u);
    }
    memoryBarrierBuffer();
    barrier();
}

// ---- a short list: at most WORKGROUP ids ----

shared uint few_id[WORKGROUP], few_key[WORKGROUP], few_weight[WORKGROUP], chosen;

// Returns the sum of the weights of the ids before this one, in the order of the keys or of the ids, and the
// sum of all.
void sum_few(uint id, uint key, bool by_id, out uvec2 before, out uvec2 all)
{
    before = all = uvec2(0);
    for (uint j = 0; j < n_list; j++) {
        bool first = by_id || few_key[j] == key ? few_id[j] < id : few_key[j] > key;
        all = add64(all, uvec2(few_weight[j], 0u));
        before = add64(before, uvec2(first ? few_weight[j] : 0u, 0u));
    }
}

// Sets the weight of this invocation's id.
void set_weight(uint w)
{
    barrier();
    few_weight[gl_LocalInvocationID.x] = w;
    barrier();
}

uint draw_of_few(uint max_key)
{
    uint i = gl_LocalInvocationID.x, at = 2 * min(i, n_list - 1), id = U32s(a.list).v[at],
         key = U32s(a.list).v[at + 1];
    uint w = i < n_list ? weight_of(key, max_key) : 0u;
    uvec2 before, all;
    few_id[i] = id;
    few_key[i] = key;
    if (a.top_k > 0u) {
        set_weight(1u);
        sum_few(id, key, false, before, all);
        w = before.x < a.top_k ? w : 0u;
    }
    set_weight(w);
    if (a.top_p > 0u) {
        sum_few(id, key, false, before, all);
        w = less64(before, share_of(all, a.top_p)) ? w : 0u;
    }
    set_weight(w < a.min_p ? 0u : w);
    sum_few(id, key, true, before, all);
    uvec2 point = point_of(all), up_to = add64(before, uvec2(few_weight[i], 0u));
    if (!less64(point, before) && less64(point, up_to))
        chosen = id;
    barrier();
    return chosen;
}

// ---- a long list: sums and searches ----

// What is kept: ids up to this one, in the order of the keys (larger ones first), then of the ids.
uint last_key = 0u, last_id = SAMPLE_NO_ID;

// how an id counts: 1, its weight, its weight if that reaches min_p
const uint COUNT = 0, WEIGHT = 1, HEAVY = 2;

uint measure(uint what, uint id, uint key, uint max_key)
{
    if (key == 0u || key < last_key || (key == last_key && id > last_id))
        return 0u;
    uint w = what == COUNT ? 1u : weight_of(key, max_key);
    return what == HEAVY && w < a.min_p ? 0u : w;
}

// Sums for each digit in three parts of 11 bits, so that a million of them fit 32 bits.
shared uint bins[3][BINS];
shared uvec2 sums[BINS]; // sums up to each digit
shared uvec2 sum_before;
shared uint digit_found;

void add_to_bin(uint bin, uvec2 sum)
{
    if (sum == uvec2(0))
        return;
    atomicAdd(bins[0][bin], sum.x & 2047u);
    atomicAdd(bins[1][bin], sum.x >> 11 & 2047u);
    atomicAdd(bins[2][bin], sum.x >> 22 | sum.y << 10);
}

uvec2 sum_of_bin(uint i)
{
    uvec2 low = uvec2(bins[0][i], 0u), middle = uvec2(bins[1][i] << 11, bins[1][i] >> 21);
    return add64(add64(low, middle), uvec2(bins[2][i] << 22, bins[2][i] >> 10));
}

// Returns digit d of an element: of ~key, from KEY_DIGITS on of its id. fits: whether the digits before it
// equal those of `found`.
uint digit_of(uint d, uint id, uint key, uvec2 found, out bool fits)
{
    bool of_key = d < KEY_DIGITS;
    uint shift = DIGIT * ((of_key ? KEY_DIGITS : KEY_DIGITS + ID_DIGITS) - 1 - d), value = of_key ? ~key : id;
    uint above = shift + DIGIT < 32 ? (value ^ (of_key ? found.x : found.y)) >> shift + DIGIT : 0u;
    fits = above == 0u;
    return value >> shift & BINS - 1;
}

void clear_bins()
{
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < 3 * BINS; i += WORKGROUP)
        bins[i / BINS][i % BINS] = 0u;
    barrier();
}

// Loads EACH elements of the list, id and key; past its end the key is 0.
void load(uint first, out uvec2 e[EACH])
{
    [[unroll]] for (uint i = 0; i < EACH; i++) {
        uint at = first + i * WORKGROUP + gl_LocalInvocationID.x, in_list = min(at, n_list - 1);
        e[i] = uvec2(U32s(a.list).v[2 * in_list], at < n_list ? U32s(a.list).v[2 * in_list + 1] : 0u);
    }
}

uvec2 total(uint what, uint max_key)
{
    uvec2 sum = uvec2(0);
    clear_bins();
    for (uint first = 0; first < n_list; first += EACH * WORKGROUP) {
        uvec2 e[EACH];
        load(first, e);
        [[unroll]] for (uint i = 0; i < EACH; i++)
            sum = add64(sum, uvec2(measure(what, e[i].x, e[i].y, max_key), 0u));
    }
    add_to_bin(0, sum);
    barrier();
    return sum_of_bin(0);
}

// Adds up the list for each value of digit d, over the elements whose earlier digits equal `found`.
// Neighbours in the list often have the same digit, so an invocation first adds up such weights by itself.
void sum_digits(uint what, uint d, uvec2 found, bool by_id, uint max_key)
{
    uvec2 sum = uvec2(0);
    uint bin = 0u;
    clear_bins();
    for (uint first = 0; first < n_list; first += EACH * WORKGROUP) {
        uvec2 e[EACH];
        load(first, e);
        [[unroll]] for (uint i = 0; i < EACH; i++) {
            bool fits;
            uint digit = digit_of(d, e[i].x, e[i].y, found, fits);
            if (!fits || !(by_id || d < KEY_DIGITS || ~e[i].y == found.x))
                continue;
            if (digit != bin) {
                add_to_bin(bin, sum);
                sum = uvec2(0);
                bin = digit;
            }
            sum = add64(sum, uvec2(measure(what, e[i].x, e[i].y, max_key), 0u));
        }
    }
    add_to_bin(bin, sum);
}

// Finds the digit at which the sum reaches `enough`. Sets digit_found, and sum_before to the sum of the
// digits before it.
void find_digit(uvec2 sum, uvec2 enough)
{
    uint i = gl_LocalInvocationID.x;
    barrier();
    if (i < BINS)
        sums[i] = sum_of_bin(i);
    for (uint step = 1; step < BINS; step *= 2) {
        barrier();
        uvec2 other = i < BINS && i >= step ? sums[i - step] : uvec2(0);
        barrier();
        if (i < BINS)
            sums[i] = add64(sums[i], other);
    }
    barrier();
    if (i < BINS) {
        uvec2 before = i > 0u ? add64(sum, sums[i - 1]) : sum;
        if (less64(before, enough) && !less64(add64(sum, sums[i]), enough)) {
            digit_found = i;
            sum_before = before;
        }
    }
    barrier();
}

// Finds the first id at which the sum up to it reaches `enough`; the sum of all must reach it. The order is
// that of the keys, or with by_id that of the ids. Returns ~key (0 with by_id) and the id.
uvec2 search(uint what, uvec2 enough, bool by_id, uint max_key)
{
    uvec2 found = uvec2(0), sum = uvec2(0);
    for (uint d = by_id ? KEY_DIGITS : 0; d < KEY_DIGITS + ID_DIGITS; d++) {
        sum_digits(what, d, found, by_id, max_key);
        find_digit(sum, enough);
        sum = sum_before;
        if (d < KEY_DIGITS)
            found.x |= digit_found << DIGIT * (KEY_DIGITS - 1 - d);
        else
            found.y |= digit_found << DIGIT * (KEY_DIGITS + ID_DIGITS - 1 - d);
    }
    return found;
}

void keep_up_to(uvec2 found)
{
    last_key = ~found.x;
    last_id = found.y;
}

uint draw(uint max_key)
{
    gather(max_key);
    if (n_list <= WORKGROUP)
        return draw_of_few(max_key);
    if (a.top_k > 0u && a.top_k < n_list)
        keep_up_to(search(COUNT, uvec2(a.top_k, 0u), false, max_key));
    if (a.top_p > 0u)
        keep_up_to(search(WEIGHT, share_of(total(WEIGHT, max_key), a.top_p), false, max_key));
    uvec2 point = point_of(total(HEAVY, max_key));
    return search(HEAVY, add64(point, uvec2(1u, 0u)), true, max_key).y;
}

shared Largest best;

void main()
{
    take_args();
    Largest found = merge_blocks();
    if (gl_LocalInvocationID.x == 0)
        best = found;
    barrier();
    uint id = best.id;
    if (fault_of(best) == SAMPLE_OK && best.key != sample_key(0x7f800000u))
        id = draw(best.key);
    if (gl_LocalInvocationID.x == 0)
        answer(best, id);
}
