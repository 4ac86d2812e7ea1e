"""Texts on which tokenizers are compared: many scripts, emoji, code, blanks, controls, marks, numbers, broken UTF-8."""

import random

WORDS = {
    "latin": "the of and to in is that it was for on are with as his they be at one have this from or had by hot but some what "
    "there we can out other were all your when up use word how said an each she which do their time if will way about many "
    "then them would write like so these her long make thing see him two has look more day could go come did my sound no most "
    "number who over know water than call first people may down side been now find don't I'll we've it's they're I'd".split(),
    "accents": "Größe naïve café Ångström façade señor piñata žluťoučký kůň řeka İstanbul ıssız ǅungla ŒUVRE ﬁnance ﬀ ŀ ſharp".split(),
    "greek": "αβγ Ελλάδα ἄνθρωπος ὈΔΥΣΣΕΎΣ σίγμας ΣΊΣΥΦΟΣ".split(),
    "cyrillic": "Привет мир ещё раз Ёлка объект Україна її".split(),
    "cjk": ["日本語", "のテキスト", "漢字とカナ", "中文字符", "，。", "「引用」", "ﾊﾝｶｸ", "ｶﾞ", "１２３", "㌔", "㈱", "豈更", "𠮷野家", "ー", "ゔ", "が"],
    "korean": ["안녕하세요", "세계", "한국어", "\u1112\u1161\u11ab", "값"],
    "indic": ["हिन्दी", "क्षेत्र", "தமிழ்", "বাংলা", "ไทยภาษา", "ລາວ", "မြန်မာ", "ខ្មែរ", "ગુજરાતી"],
    "rtl": ["العربية", "مرحباً", "שלום", "עִבְרִית", "٣٤٥", "ﷺ", "لا"],
    "emoji": ["🦙", "👩‍👩‍👧", "🇩🇪🇫🇷", "👍🏽", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "❤️", "1️⃣", "👩🏾‍🚀", "🫠", "©", "™", "\u200d", "\ufe0f"],
    "numbers": "0 7 42 1234567 3.14159 1,000,000 1e-5 0x1F ½ ⅷ ² ³ ٣٤ 七八 2024-01-31 12:34:56 ①② ௧௨ 99999999999999".split(),
    "code": [
        "def main():\n    return x**2\n", "for (int i = 0; i < n; ++i) {\n\ta[i] += b->c;\n}\n", "<div class=\"a\">&nbsp;</div>", "SELECT * FROM t;",
        "#include <vector>\r\n", "// see above", "foo_bar", "camelCaseName", "HTTPServer", "a.b.c()", "$x = @y;", "`ls -la`", "\\n\\t", "{{x}}", "==>", "!=", "'''", '"""',
    ],
    "blanks": [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u3000", "\u2028", "\u2003", "\u1680", "\u0085", "\x0b", "\x0c", "\u200b", "\ufeff", "        "],
    "controls": ["\x00", "\x01", "\x08", "\x1b[0m", "\x7f", "\x9f", "\u00ad", "\u200e", "\u202e", "\u2060", "\ue000", "\U000f0000", "\ufffe"],
    "marks": ["e\u0301", "a\u0301\u0302\u0303", "\u0301", "o\u0328\u0301", "\u1100\u1161", "\u0915\u094d", "q\u0307\u0323", "\u212b", "\u2126", "\ufb01", "x\u20dd", "\u0344"],
    "special": ["<s>", "</s>", "<unk>", "[CLS]", "[SEP]", "<|endoftext|>", "<|begin_of_text|>", "<0x41>", "▁", "▁▁", "Ġ", "##ing", "<pad>", "<mask>", "[MASK]", "<|", "|>"],
    "punctuation": ["...", "—", "“quoted”", "¿qué?", "e.g.", "(a)", "[b]", "{c}", "a/b", "…", "‚", "'", "''", "don’t", "~", "^_^", "§5", "€10", "₿", "→", "∑", "✓", "‿", "⸮"],
}
BROKEN = [b"\xff", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f\x92", b"\xc0\xaf", b"\xf5\x80", b"\x80\x80", b"\xf4\x90\x80\x80", b"\xe0\x80\x80"]


def texts(count, seed=20):
    """`count` texts, the same ones for a seed: kinds by themselves and mixed, joined with and without blanks, some of them long."""
    chance = random.Random(seed)
    kinds = list(WORDS)
    result = ["", " ", "a", " a", "a ", "\n"] + [word for kind in kinds for word in WORDS[kind]]
    while len(result) < count:
        way = chance.random()
        if way < 0.30:
            chosen, joint = [chance.choice(kinds)], chance.choice([" ", "", "  "])
        elif way < 0.55:
            chosen, joint = ["latin", "latin", "latin", "punctuation", "numbers"], " "
        elif way < 0.90:
            chosen, joint = kinds, chance.choice([" ", "", "\n"])
        else:
            # Any characters at all, most of them near each other.
            start = chance.choice([0x20, 0xA0, 0x300, 0x370, 0x590, 0x900, 0xE00, 0x1100, 0x1E00, 0x2000, 0x3000, 0x4E00, 0xAC00, 0xFB00, 0x1F300])
            result.append("".join(chr(start + chance.randrange(0x180)) for _ in range(chance.randrange(1, 12))))
            continue
        length = chance.randrange(1, 12) if way < 0.85 else chance.randrange(12, 60)
        pieces = [chance.choice(WORDS[chance.choice(chosen)]) for _ in range(length)]
        if chance.random() < 0.05:
            pieces = [word.upper() for word in pieces]
        text = joint.join(pieces)
        if chance.random() < 0.04:
            raw = bytearray(text.encode())
            at = chance.randrange(len(raw) + 1)
            raw[at:at] = chance.choice(BROKEN)
            text = bytes(raw).decode(errors="replace")
        result.append(text)
    return result[:count]
