// each.glsl - a kernel's arguments: push constants, or in a kernel of the variant `each` a record of its own
// for each z of the grid, so that one dispatch serves many sequences (exec_dispatch_each). ARGS(type)
// declares `a`; main begins with take_args().
#ifndef LIB_EACH_GLSL
#define LIB_EACH_GLSL

#ifdef RECORDS
#define ARGS(type)                                                                                          \
    layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Records { type v[]; };     \
    layout(push_constant, std430) uniform Args { each_args each; };                                         \
    type a;                                                                                                 \
    void take_args()                                                                                        \
    {                                                                                                       \
        a = Records(each.records).v[gl_WorkGroupID.z];                                                      \
    }
#else
#define ARGS(type)                                           \
    layout(push_constant, std430) uniform Args { type a; };  \
    void take_args()                                         \
    {                                                        \
    }
#endif

#endif
