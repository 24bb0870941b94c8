// gemv_both.glsl - the pieces of gemv_other.glsl and the 4-bit ones of gemv_usual.glsl in one kernel: experts
// in one extended format with a shared expert of 4 bits. A step has room for either. FORMAT_NONE stands for
// the extended format.
#define piece_vecs other_piece_vecs
#define load_at other_load_at
#define load_piece other_load_piece
#define add_columns other_add_columns
#define add_step other_add_step
#define Parts other_Parts
#define piece_address other_piece_address
#define group_address other_group_address
#define add_places other_add_places
#define group_shift other_group_shift
#define steps_by_groups other_steps_by_groups
#include "lib/gemv_other.glsl"
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

#define piece_vecs usual_piece_vecs
#define load_at usual_load_at
#define load_piece usual_load_piece
#define add_columns usual_add_columns
#define add_step usual_add_step
#define Parts usual_Parts
#define piece_address usual_piece_address
#define group_address usual_group_address
#define add_places usual_add_places
#define group_shift usual_group_shift
#define steps_by_groups usual_steps_by_groups
#include "lib/gemv_usual.glsl"
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
    return format == FORMAT_NONE ? other_piece_vecs(format) : usual_piece_vecs(format);
}

void load_at(inout Step s, uint r, const uint format, uvec2 weight, uvec2 scales, uvec2 biases, uint piece,
             uint group)
{
    if (format == FORMAT_NONE)
        other_load_at(s, r, format, weight, scales, biases, piece, group);
    else
        usual_load_at(s, r, format, weight, scales, biases, piece, group);
}

void load_piece(inout Step s, uint r, const uint format, uvec2 weight, uvec2 scales, uvec2 biases,
                uint row_at, uint i)
{
    if (format == FORMAT_NONE)
        other_load_piece(s, r, format, weight, scales, biases, row_at, i);
    else
        usual_load_piece(s, r, format, weight, scales, biases, row_at, i);
}

void add_step(inout float acc[MAX_ACC], const uint format, Step s, uint c4)
{
    if (format == FORMAT_NONE)
        other_add_step(acc, format, s, c4);
    else
        usual_add_step(acc, format, s, c4);
}

#ifdef DENORM
uvec2 piece_address(const uint format, uvec2 weight, uint piece)
{
    return format == FORMAT_NONE ? other_piece_address(format, weight, piece) :
                                   usual_piece_address(format, weight, piece);
}

uvec2 group_address(const uint format, uvec2 scales, uint group)
{
    return format == FORMAT_NONE ? other_group_address(format, scales, group) :
                                   usual_group_address(format, scales, group);
}

// Pieces of basic formats ignore places.
void add_places(inout Step s, uint first, uint group)
{
    other_add_places(s, first, group);
}

uint group_shift(const uint format)
{
    return format == FORMAT_NONE ? other_group_shift(format) : usual_group_shift(format);
}

bool steps_by_groups(const uint format)
{
    return format == FORMAT_NONE ? other_steps_by_groups(format) : usual_steps_by_groups(format);
}
#endif
