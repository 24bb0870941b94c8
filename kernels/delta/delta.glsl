// delta.glsl - the channels of the gated delta net, for delta/decode.comp and delta/prefill_prep.comp.
// Includers define K_DIM, V_DIM, TAPS, BY_CHANNEL and LOWER, and a struct named `a` with delta_args' members.

uint n_channels()
{
    return 2 * a.n_k * K_DIM + a.n_v * V_DIM;
}

// Returns row r of the sequence [window; chunk]: the value before the convolution. One load serves both
// cases.
float before_conv(uint r, uint channel)
{
    bool held = r < TAPS - 1;
    uvec2 from = held ? a.window_in : a.proj;
    return F32s(from).v[held ? r * n_channels() + channel : (r - (TAPS - 1)) * a.stride + channel];
}

// Returns a decay. x: a + dt_bias. a_log: the value head's.
float decay_of(float x, float a_log)
{
    float rate = exp_exact(a_log);
    return exp_exact(LOWER < 0.0 ? LOWER * sigmoid(rate * x) : -rate * softplus(x));
}

// BY_CHANNEL: returns the decay of key channel c of a value head.
float channel_decay(uint token, uint head, uint c)
{
    uint at = head * K_DIM + c;
    float x = F32s(a.proj).v[token * a.stride + a.a_at + at] + F32s(a.dt_bias).v[at];
    return decay_of(x, F32s(a.a_log).v[head]);
}
