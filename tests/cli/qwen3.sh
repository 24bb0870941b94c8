#!/bin/sh
# Qwen3-MoE through the program: inspect, conversions that give the same tokens, caches of prompts, an unknown
# model_type. The model is random, so ids are compared and no texts.
# suites: check asan-nightly
. tests/lib/cli.sh

mlx=tests/models/qwen3-odd/mlx

claim inspect_shows_the_family_and_its_sizes
run 0 "$MOEFLUX" inspect "$mlx" --json --no-measure
json_is 'j["architecture"]' 'Qwen3-MoE'
json_is 'j["attention_layers"], j["experts"], j["top_k"]' '(3, 4, 2)'
# Keys and values of 3 layers with 3 heads of 20 channels; no state of constant size.
json_is 'j["kv_bytes_per_token"], j["fixed_state_bytes"]' '(1440, 0)'
# Two of the layers have experts.
json_is 'j["expert_bytes"] == 2 * 4 * j["one_expert_bytes"]' True

claim every_form_of_the_model_gives_the_same_tokens
echo 0 5 6 7 200 >"$tmp/in"
run 0 "$MOEFLUX" -m "$mlx" --tokens-in "$tmp/in" --temp 0 -n 12 --ignore-eos --tokens-out
cp "$tmp/out" "$tmp/want"
for source in mlx hf; do
    run 0 "$MOEFLUX" convert "tests/models/qwen3-odd/$source" "$tmp/$source"
    run 0 "$MOEFLUX" -m "$tmp/$source" --tokens-in "$tmp/in" --temp 0 -n 12 --ignore-eos --tokens-out
    cmp -s "$tmp/out" "$tmp/want" || fault "$source gives $(cat "$tmp/out"), expected $(cat "$tmp/want")"
done

claim a_cached_prompt_gives_the_tokens_of_a_fresh_one
python3 -c 'print(*[5 + 7 * i % 190 for i in range(60)])' >"$tmp/many"
run 0 "$MOEFLUX" -m "$mlx" --tokens-in "$tmp/many" --temp 0 -n 8 --ignore-eos --tokens-out
cp "$tmp/out" "$tmp/want"
head -c "$(awk '{ n = 0; for (i = 1; i <= 40; i++) n += length($i) + 1; print n }' "$tmp/many")" \
    "$tmp/many" >"$tmp/few"
run 0 "$MOEFLUX" -m "$mlx" --tokens-in "$tmp/few" --temp 0 --json -n 1 --prompt-cache "$tmp/cache"
# A conversion has the fingerprint of its source.
run 0 "$MOEFLUX" -m "$tmp/hf" --tokens-in "$tmp/many" --temp 0 -n 8 --ignore-eos --tokens-out --prompt-cache \
    "$tmp/cache"
cmp -s "$tmp/out" "$tmp/want" || fault "the cache gives $(cat "$tmp/out"), expected $(cat "$tmp/want")"
run 0 "$MOEFLUX" -m "$mlx" --tokens-in "$tmp/many" --temp 0 --json -n 1 --prompt-cache "$tmp/cache"
json_is 'j["reused_tokens"] >= 40' True

claim an_unknown_model_type_is_refused_with_the_known_ones
mkdir "$tmp/other"
cp "$mlx"/* "$tmp/other"
sed -i 's/"qwen3_moe"/"mixtral"/' "$tmp/other/config.json"
fails 1 "^moeflux: $tmp/other/config.json: model_type .*mixtral" -m "$tmp/other" --tokens-in "$tmp/in" -n 1
err_has ' qwen3_5_moe, qwen3_moe, deepseek_v3, joyai_llm_flash, glm4_moe, qwen3_next, '
err_has ' qwen3_next, kimi_k2, kimi_k25, minimax_m2, minimax, gpt_oss, glm4_moe_lite, .* qwen3_8_flash_next_text, '
err_has ' gemma4, glm_moe_dsa, deepseek_v32, kimi_linear, bailing_hybrid, deepseek_v4, deepseek_v41, glm5_next, '
err_has ' glm5_next, minimax_m3_vl, .* or kimi_k3$'
fails 1 "^moeflux: $tmp/other/config.json: model_type .*mixtral.*kimi_k3$" inspect "$tmp/other"

report
