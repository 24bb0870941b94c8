/* math.js - formulas in TeX as MathML, which browsers draw. A formula that is not understood is shown as it is. */
const MATHML = 'http://www.w3.org/1998/Math/MathML';

function mathElement(kind, ...children) {
  const e = document.createElementNS(MATHML, kind);
  e.append(...children);
  return e;
}

const symbols = text => Object.fromEntries(text.trim().split(/\s+/).map(pair => pair.split('=')));
const LETTERS = symbols(`alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ vartheta=ϑ iota=ι
  kappa=κ lambda=λ mu=μ nu=ν xi=ξ pi=π varpi=ϖ rho=ρ varrho=ϱ sigma=σ varsigma=ς tau=τ upsilon=υ phi=ϕ varphi=φ chi=χ
  psi=ψ omega=ω Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ Upsilon=Υ Phi=Φ Psi=Ψ Omega=Ω infty=∞ partial=∂
  nabla=∇ hbar=ℏ ell=ℓ Re=ℜ Im=ℑ aleph=ℵ emptyset=∅ varnothing=∅ angle=∠ degree=° dots=… ldots=… cdots=⋯ vdots=⋮ ddots=⋱
  top=⊤ bot=⊥ imath=ı jmath=ȷ`);
const OPERATORS = symbols(`cdot=⋅ times=× div=÷ pm=± mp=∓ ast=∗ star=⋆ circ=∘ bullet=∙ oplus=⊕ ominus=⊖ otimes=⊗ odot=⊙
  le=≤ leq=≤ leqslant=⩽ ge=≥ geq=≥ geqslant=⩾ ne=≠ neq=≠ approx=≈ equiv=≡ sim=∼ simeq=≃ cong=≅ propto=∝ ll=≪ gg=≫ doteq=≐
  in=∈ notin=∉ ni=∋ subset=⊂ supset=⊃ subseteq=⊆ supseteq=⊇ cup=∪ cap=∩ setminus=∖ land=∧ wedge=∧ lor=∨ vee=∨ lnot=¬ neg=¬
  forall=∀ exists=∃ nexists=∄ to=→ rightarrow=→ leftarrow=← gets=← leftrightarrow=↔ Rightarrow=⇒ Leftarrow=⇐
  Leftrightarrow=⇔ implies=⟹ iff=⟺ mapsto=↦ longrightarrow=⟶ uparrow=↑ downarrow=↓ hookrightarrow=↪ mid=∣ nmid=∤ parallel=∥
  perp=⊥ vdash=⊢ models=⊨ therefore=∴ because=∵ colon=: prime=′ dagger=† langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈
  rceil=⌉ lvert=| rvert=| lVert=‖ rVert=‖ vert=| Vert=‖ lbrace={ rbrace=} backslash=\\ asymp=≍ triangle=△ square=□`);
const BIG = symbols(`sum=∑ prod=∏ coprod=∐ int=∫ iint=∬ iiint=∭ oint=∮ bigcup=⋃ bigcap=⋂ bigoplus=⨁ bigotimes=⨂ bigvee=⋁
  bigwedge=⋀`);
const FUNCTIONS = new Set(`sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp lim limsup liminf max min
  sup inf det gcd deg dim ker arg hom Pr argmax argmin`.split(/\s+/));
const LIMITS = new Set('lim limsup liminf max min sup inf det gcd argmax argmin'.split(' '));
const ACCENTS = symbols(`hat=^ widehat=^ bar=¯ overline=¯ tilde=~ widetilde=~ vec=→ overrightarrow=→ dot=˙ ddot=¨ check=ˇ
  breve=˘ overbrace=⏞`);
const UNDER = symbols('underline=_ underbrace=⏟');
const SPACES = {',': '.17em', ':': '.22em', '>': '.22em', ';': '.28em', '!': '-.17em', ' ': '.33em', quad: '1em', qquad: '2em'};
const STYLES = {mathbf: 'bold', boldsymbol: 'bold', bm: 'bold', mathrm: 'normal', mathit: 'italic', mathbb: 'double-struck',
  mathcal: 'script', mathscr: 'script', mathfrak: 'fraktur', mathsf: 'sans-serif', mathtt: 'monospace'};
/* Where the letters of a style begin: A, a, 0. Some are elsewhere for reasons of history. */
const STYLE_LETTERS = {bold: [0x1d400, 0x1d41a, 0x1d7ce], 'double-struck': [0x1d538, 0x1d552, 0x1d7d8],
  script: [0x1d49c, 0x1d4b6], fraktur: [0x1d504, 0x1d51e], 'sans-serif': [0x1d5a0, 0x1d5ba, 0x1d7e2],
  monospace: [0x1d670, 0x1d68a, 0x1d7f6]};
const STYLE_ELSEWHERE = {'double-struck': symbols('C=ℂ H=ℍ N=ℕ P=ℙ Q=ℚ R=ℝ Z=ℤ'),
  script: symbols('B=ℬ E=ℰ F=ℱ H=ℋ I=ℐ L=ℒ M=ℳ R=ℛ e=ℯ g=ℊ o=ℴ'), fraktur: symbols('C=ℭ H=ℌ I=ℑ R=ℜ Z=ℨ')};
const FENCES = {matrix: ['', ''], pmatrix: ['(', ')'], bmatrix: ['[', ']'], Bmatrix: ['{', '}'], vmatrix: ['|', '|'],
  Vmatrix: ['‖', '‖'], cases: ['{', ''], aligned: ['', ''], align: ['', ''], 'align*': ['', ''], array: ['', ''],
  gathered: ['', ''], equation: ['', ''], 'equation*': ['', ''], split: ['', ''], smallmatrix: ['', '']};

function styled(c, style) {
  const own = STYLE_ELSEWHERE[style] && STYLE_ELSEWHERE[style][c], at = STYLE_LETTERS[style];
  const kind = /[A-Z]/.test(c) ? [0, 65] : /[a-z]/.test(c) ? [1, 97] : /[0-9]/.test(c) ? [2, 48] : null;
  return own || (at && kind && at[kind[0]] ? String.fromCodePoint(at[kind[0]] + c.charCodeAt(0) - kind[1]) : c);
}

class MathReader {
  constructor(text, display) {
    this.tokens = text.match(/\\[a-zA-Z]+\*?|\\[^]|[^\s]|\s+/g) || [];
    this.i = 0;
    this.display = display;
    this.depth = 0;
  }

  skipBlanks() { while (this.i < this.tokens.length && /^\s/.test(this.tokens[this.i])) this.i++; }
  peek() { this.skipBlanks(); return this.tokens[this.i]; }
  next() { this.skipBlanks(); return this.tokens[this.i++]; }
  expect(token) { if (this.next() !== token) throw new Error('expected ' + token); }

  /* Elements up to one of the tokens `ends`, which is left. */
  row(ends, style) {
    const out = [];
    if (++this.depth > 60) throw new Error('too deep');
    while (this.peek() !== undefined && !ends.includes(this.peek())) out.push(this.scripted(style));
    this.depth--;
    if (this.peek() === undefined && ends.length) throw new Error('expected ' + ends[0]);
    return out;
  }

  /* One element with its subscript and superscript. */
  scripted(style) {
    const base = this.peek() === '^' || this.peek() === '_' ? mathElement('mrow') : this.atom(style);
    let sub = null, sup = null;
    for (;;) {
      const t = this.peek();
      if (t === '_' && !sub) { this.next(); sub = this.argument(style); }
      else if (t === '^' && !sup) { this.next(); sup = this.argument(style); }
      else if (t === "'") { sup = mathElement('mrow', ...(sup ? [sup] : []), this.primes()); }
      else break;
    }
    const above = base.limits && this.display, kind = above ? ['munder', 'mover', 'munderover'] : ['msub', 'msup', 'msubsup'];
    if (sub && sup) return mathElement(kind[2], base, sub, sup);
    return sub ? mathElement(kind[0], base, sub) : sup ? mathElement(kind[1], base, sup) : base;
  }

  primes() {
    let text = '';
    while (this.peek() === "'") { this.next(); text += '′'; }
    return mathElement('mo', text);
  }

  argument(style) {
    if (this.peek() !== '{') return this.atom(style);
    this.next();
    const row = mathElement('mrow', ...this.row(['}'], style));
    this.next();
    return row;
  }

  /* The text of {...} as it is written. */
  rawArgument() {
    this.expect('{');
    let text = '', depth = 1;
    for (; this.i < this.tokens.length; this.i++) {
      const t = this.tokens[this.i];
      depth += t === '{' ? 1 : t === '}' ? -1 : 0;
      if (depth === 0) { this.i++; return text; }
      text += t.replace(/^\\([^a-zA-Z])$/, '$1');
    }
    throw new Error('expected }');
  }

  atom(style) {
    const t = this.next();
    if (t === undefined) throw new Error('something is missing at the end');
    if (t === '{') { this.i--; return this.argument(style); }
    if (t[0] === '\\') return this.command(t.slice(1), style);
    if (/[0-9]/.test(t)) return this.number(t, style);
    if (/\p{L}/u.test(t)) {
      const e = mathElement('mi', styled(t, style));
      if (style === 'normal') e.setAttribute('mathvariant', 'normal');
      return e;
    }
    if (t === '}' || t === '&') throw new Error('unexpected ' + t);
    return mathElement('mo', t === '-' ? '−' : t === '*' ? '∗' : t);
  }

  number(t, style) {
    while (this.i < this.tokens.length && /^[0-9.]$/.test(this.tokens[this.i]) &&
           (this.tokens[this.i] !== '.' || /^[0-9]$/.test(this.tokens[this.i + 1] || '')))
      t += this.tokens[this.i++];
    return mathElement('mn', [...t].map(c => styled(c, style)).join(''));
  }

  command(name, style) {
    if (LETTERS[name]) return mathElement('mi', LETTERS[name]);
    if (OPERATORS[name]) return mathElement('mo', OPERATORS[name]);
    if (name in SPACES) { const e = mathElement('mspace'); e.setAttribute('width', SPACES[name]); return e; }
    if (BIG[name]) return Object.assign(mathElement('mo', BIG[name]), {limits: !name.endsWith('int')});
    if (FUNCTIONS.has(name)) return Object.assign(mathElement('mi', name), {limits: LIMITS.has(name)});
    if (ACCENTS[name]) return this.accent('mover', ACCENTS[name], style);
    if (UNDER[name]) return this.accent('munder', UNDER[name], style);
    if (name in STYLES) return this.argument(STYLES[name]);
    if (/^[{}%$#&_|]$/.test(name)) return mathElement('mo', name === '|' ? '‖' : name);
    const special = MathReader.commands[name];
    if (!special) throw new Error('unknown \\' + name);
    return special.call(this, style, name);
  }

  accent(kind, mark, style) {
    const mo = mathElement('mo', mark), e = mathElement(kind, this.argument(style), mo);
    mo.setAttribute('stretchy', /[¯→_⏞⏟]/.test(mark));
    e.setAttribute(kind === 'mover' ? 'accent' : 'accentunder', true);
    e.limits = /[⏞⏟]/.test(mark);
    return e;
  }

  fence() {
    const t = this.next();
    if (t === undefined) throw new Error('a bracket is missing');
    const text = t === '.' ? '' : t[0] === '\\' ? OPERATORS[t.slice(1)] || (t === '\\|' ? '‖' : t.slice(1)) : t;
    const mo = mathElement('mo', text);
    mo.setAttribute('stretchy', true);
    return mo;
  }

  table(name) {
    const fences = FENCES[name.replace(/^dcases$/, 'cases')];
    if (!fences) throw new Error('unknown environment ' + name);
    if (name === 'array') this.rawArgument();
    const rows = [[]], table = mathElement('mtable');
    for (;;) {
      rows[rows.length - 1].push(mathElement('mtd', ...this.row(['&', '\\\\', '\\end'])));
      const t = this.next();
      if (t === '\\end') break;
      if (t === '\\\\') rows.push([]);
    }
    if (this.rawArgument() !== name) throw new Error('another \\end than ' + name);
    const last = rows[rows.length - 1];
    if (last.length === 1 && !last[0].childNodes.length) rows.pop();
    table.append(...rows.map(cells => mathElement('mtr', ...cells)));
    if (/^(align|aligned|split|cases)/.test(name)) table.setAttribute('columnalign', name === 'cases' ? 'left' : 'right left');
    const side = text => { const mo = mathElement('mo', text); mo.setAttribute('stretchy', true); return mo; };
    return mathElement('mrow', ...(fences[0] ? [side(fences[0])] : []), table, ...(fences[1] ? [side(fences[1])] : []));
  }
}

function fraction(reader, style, line) {
  const e = mathElement('mfrac', reader.argument(style), reader.argument(style));
  if (!line) e.setAttribute('linethickness', 0);
  return e;
}
const textOf = function () { return mathElement('mtext', this.rawArgument()); };
const nothing = () => mathElement('mrow');

MathReader.commands = {
  frac(style) { return fraction(this, style, true); },
  binom(style) { return mathElement('mrow', mathElement('mo', '('), fraction(this, style, false), mathElement('mo', ')')); },
  sqrt(style) {
    if (this.peek() !== '[') return mathElement('msqrt', this.argument(style));
    this.next();
    const index = mathElement('mrow', ...this.row([']'], style));
    this.next();
    return mathElement('mroot', this.argument(style), index);
  },
  left(style) {
    const open = this.fence(), inner = this.row(['\\right'], style);
    this.next();
    return mathElement('mrow', open, ...inner, this.fence());
  },
  middle() { return this.fence(); },
  begin() { return this.table(this.rawArgument()); },
  stackrel(style) { const top = this.argument(style); return mathElement('mover', this.argument(style), top); },
  underset(style) { const low = this.argument(style); return mathElement('munder', this.argument(style), low); },
  boxed(style) { const e = this.argument(style); e.setAttribute('style', 'border: 1px solid; padding: .2em'); return e; },
  pmod(style) {
    return mathElement('mrow', mathElement('mo', '('), mathElement('mi', 'mod'), this.argument(style), mathElement('mo', ')'));
  },
  mod() { return mathElement('mo', 'mod'); },
  bmod() { return mathElement('mo', 'mod'); },
  operatorname() { return Object.assign(mathElement('mi', this.rawArgument()), {limits: false}); },
  text: textOf, textbf: textOf, textit: textOf, textrm: textOf, mbox: textOf, tag: textOf,
  displaystyle: nothing, textstyle: nothing, limits: nothing, nolimits: nothing, nonumber: nothing, label() {
    this.rawArgument();
    return nothing();
  },
  not(style) { const e = this.atom(style); e.append('\u0338'); return e; },
};
for (const name of ['dfrac', 'tfrac', 'cfrac']) MathReader.commands[name] = MathReader.commands.frac;
MathReader.commands['operatorname*'] = MathReader.commands.operatorname;
MathReader.commands.overset = MathReader.commands.stackrel;
for (const size of ['big', 'Big', 'bigg', 'Bigg'])
  for (const side of ['', 'l', 'r', 'm']) MathReader.commands[size + side] = function () { return this.fence(); };

/* A formula as a node; display: on lines of its own. */
function mathNode(text, display) {
  try {
    const math = mathElement('math', mathElement('mrow', ...new MathReader(text, display).row([])));
    if (display) math.setAttribute('display', 'block');
    math.setAttribute('aria-label', text.trim());
    return math;
  } catch {
    return node(display ? 'pre' : 'code', '', text.trim());
  }
}
