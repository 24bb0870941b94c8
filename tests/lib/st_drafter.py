"""Adds a layer of multi-token prediction to a checkpoint of safetensors: attention and feed-forward part of layers
of the model once more, the model's last mix of streams, norms of ones, and a join that halves the embedding and
the hidden state. The family is that of config.json.
usage: st_drafter.py SOURCE RESULT"""
import json, os, re, struct, sys

AS_NEXTN = {'embedding': 'enorm', 'hidden': 'hnorm', 'own': 'shared_head.norm', 'join': ['eh_proj']}
# start: before all names; layer: before those of the layer; mixer, ffn: layers that it is made of
FORMS = {
    'qwen4_exp_text': {'start': 'mtp.', 'layer': 'mtp.layers.0.', 'mixer': 2, 'ffn': 2, 'streams': 4,
                       'embedding': 'pre_fc_norm_embedding', 'hidden': 'pre_fc_norm_hidden',
                       'join': ['fc_embedding', 'fc_hidden'], 'mix': 'hyper_connection_mixer', 'one_norm': True},
    'mimo_v2_flash': AS_NEXTN | {'start': 'model.mtp.layers.0.', 'mixer': 0, 'ffn': 1, 'own': 'final_layernorm',
                                 'ffn_norm': 'pre_mlp_layernorm.weight'},
    'step3p5': AS_NEXTN | {'start': 'model.layers.3.', 'mixer': 0, 'ffn': 0, 'own': 'transformer.shared_head.norm'},
    'glm5_next': AS_NEXTN | {'start': 'model.language_model.layers.4.', 'mixer': 3, 'ffn': 3, 'plain': True},
    'deepseek_v4': AS_NEXTN | {'start': 'mtp.0.', 'mixer': 2, 'ffn': 2, 'own': 'norm', 'join': ['e_proj', 'h_proj'],
                               'mix': 'hc_head', 'streams': 3},
}


def main():
    source, result = sys.argv[1:]
    config = json.load(open(os.path.join(source, 'config.json')))
    data = open(os.path.join(source, 'model.safetensors'), 'rb').read()
    n, = struct.unpack('<Q', data[:8])
    header = json.loads(data[8:8 + n])
    header.pop('__metadata__', None)
    form = FORMS[config['model_type']]
    start, hidden = form['start'], config.get('text_config', config)['hidden_size']
    tensors = {k: (v['dtype'], v['shape'], data[8 + n + v['data_offsets'][0]:8 + n + v['data_offsets'][1]])
               for k, v in header.items() if not k.startswith(('mtp.', start))}
    new = {}
    for name, t in tensors.items():
        found = re.match(r'(?:.*\.)?layers\.(\d+)\.(.*)', name)
        rest = found and found[2]
        is_mixer = rest and rest.startswith(('self_attn.', 'attn.', 'attn_', 'input_', 'hc_attn'))
        is_like = found and int(found[1]) == form['mixer' if is_mixer else 'ffn']
        if is_like and not (form.get('plain') and 'hc_' in rest):
            norm = rest == 'post_attention_layernorm.weight' and form.get('ffn_norm')
            new[form.get('layer', start) + (norm or rest)] = t
        if not found and form.get('mix') and form['mix'] in name:
            new[start + name[name.index(form['mix']):]] = t
    width_of_hidden = hidden * (form['streams'] if form.get('one_norm') else 1)
    for name, width in (form['embedding'], hidden), (form['hidden'], width_of_hidden), (form.get('own'), hidden):
        if name:
            new[f'{start}{name}.weight'] = 'F32', [width], struct.pack(f'<{width}f', *[1] * width)
    cols = 2 * hidden // len(form['join'])
    rows = b''.join(struct.pack(f'<{cols}f', *(0.5 if c % hidden == i else 0 for c in range(cols)))
                    for i in range(hidden))
    new |= {f'{start}{name}.weight': ('F32', [hidden, cols], rows) for name in form['join']}
    at, out = 0, {}
    for name, (kind, shape, body) in (tensors | new).items():
        out[name] = {'dtype': kind, 'shape': shape, 'data_offsets': [at, at + len(body)]}
        at += len(body)
    text = json.dumps(out).encode()
    os.makedirs(result, exist_ok=True)
    with open(os.path.join(result, 'model.safetensors'), 'wb') as f:
        f.write(struct.pack('<Q', len(text)) + text + b''.join(body for _, _, body in (tensors | new).values()))
    with open(os.path.join(result, 'config.json'), 'w') as f:
        json.dump(config, f)


if __name__ == '__main__':
    main()
