// gemv_both.glsl - the pieces of gemv_extended.glsl and the 4-bit ones of gemv_basic.glsl in one kernel:
// experts in one extended format with a shared expert of 4 bits. A step has room for either. FORMAT_NONE
// stands for the extended format.
#define piece_vecs extended_piece_vecs
#define load_at extended_load_at
#define load_piece extended_load_piece
#define add_columns extended_add_columns
#define add_step extended_add_step
#define Parts extended_Parts
#define piece_address extended_piece_address
#define group_address extended_group_address
#define add_places extended_add_places
#define group_shift extended_group_shift
#define steps_by_groups extended_steps_by_groups
#include "lib/gemv_extended.glsl"
#undef piece_vecs
#undef load_at
#undef load_piece
#undef add_columns
#undef add_step
#undef Parts
#undef piece_address
#undef group_address
#undef add_places
#undef group_shift
#undef steps_by_groups

// Returns row r's piece of 16 bytes.
uvec4 words_of(Step s, uint r)
{
    uint at = r * MAX_WORDS;
    return uvec4(s.q[at], s.q[at + 1], s.q[at + 2], s.q[at + 3]);
}

void put_words(inout Step s, uint r, uvec4 v)
{
    [[unroll]] for (uint j = 0; j < 4; j++)
        s.q[r * MAX_WORDS + j] = v[j];
}

#define piece_vecs basic_piece_vecs
#define load_at basic_load_at
#define load_piece basic_load_piece
#define add_columns basic_add_columns
#define add_step basic_add_step
#define Parts basic_Parts
#define piece_address basic_piece_address
#define group_address basic_group_address
#define add_places basic_add_places
#define group_shift basic_group_shift
#define steps_by_groups basic_steps_by_groups
#include "lib/gemv_basic.glsl"
#undef piece_vecs
#undef load_at
#undef load_piece
#undef add_columns
#undef add_step
#undef Parts
#undef piece_address
#undef group_address
#undef add_places
#undef group_shift
#undef steps_by_groups

uint piece_vecs(const uint format)
{
    return format == FORMAT_NONE ? extended_piece_vecs(format) : basic_piece_vecs(format);
}

void load_at(inout Step s, uint r, const uint format, uvec2 weight, uvec2 scales, uvec2 biases, uint piece,
             uint group)
{
    if (format == FORMAT_NONE)
        extended_load_at(s, r, format, weight, scales, biases, piece, group);
    else
        basic_load_at(s, r, format, weight, scales, biases, piece, group);
}

void load_piece(inout Step s, uint r, const uint format, uvec2 weight, uvec2 scales, uvec2 biases,
                uint row_at, uint i)
{
    if (format == FORMAT_NONE)
        extended_load_piece(s, r, format, weight, scales, biases, row_at, i);
    else
        basic_load_piece(s, r, format, weight, scales, biases, row_at, i);
}

void add_step(inout float acc[MAX_ACC], const uint format, Step s, uint c4)
{
    if (format == FORMAT_NONE)
        extended_add_step(acc, format, s, c4);
    else
        basic_add_step(acc, format, s, c4);
}

#ifdef DENORM
uvec2 piece_address(const uint format, uvec2 weight, uint piece)
{
    return format == FORMAT_NONE ? extended_piece_address(format, weight, piece) :
                                   basic_piece_address(format, weight, piece);
}

uvec2 group_address(const uint format, uvec2 scales, uint group)
{
    return format == FORMAT_NONE ? extended_group_address(format, scales, group) :
                                   basic_group_address(format, scales, group);
}

// Pieces of basic formats ignore places.
void add_places(inout Step s, uint first, uint group)
{
    extended_add_places(s, first, group);
}

uint group_shift(const uint format)
{
    return format == FORMAT_NONE ? extended_group_shift(format) : basic_group_shift(format);
}

bool steps_by_groups(const uint format)
{
    return format == FORMAT_NONE ? extended_steps_by_groups(format) : basic_steps_by_groups(format);
}
#endif
