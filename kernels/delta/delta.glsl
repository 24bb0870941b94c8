// delta.glsl - the channels of the gated delta net, for delta/decode.comp and delta/prefill_prep.comp.
// Includers define K_DIM, V_DIM and TAPS, and a struct named `a` with delta_args' members.

uint n_channels()
{
    return 2 * a.n_k * a.k_dim + a.n_v * a.v_dim;
}

// Returns row r of the sequence [window; chunk]: the value before the convolution. One load serves both
// cases.
float before_conv(uint r, uint channel)
{
    bool held = r < TAPS - 1;
    uvec2 from = held ? a.window_in : a.proj;
    return F32s(from).v[held ? r * n_channels() + channel : (r - (TAPS - 1)) * a.stride + channel];
}
