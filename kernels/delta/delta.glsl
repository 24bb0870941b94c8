// delta.glsl - the channels of the gated delta net, as delta/decode.comp and delta/prefill_prep.comp see
// them. Includers define K_DIM, V_DIM and TAPS and a struct with delta_args' members, named a.

uint n_channels()
{
    return 2 * a.n_k * a.k_dim + a.n_v * a.v_dim;
}

// Row r of the virtual sequence [window; chunk]: the value before the convolution. One load, whichever it is.
float before_conv(uint r, uint channel)
{
    bool held = r < TAPS - 1;
    uvec2 from = held ? a.window_in : a.proj;
    return F32s(from).v[held ? r * n_channels() + channel : (r - (TAPS - 1)) * a.stride + channel];
}
