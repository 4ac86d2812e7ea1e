// The Jinja that chat templates are written in: what is rendered, and what is refused with its line. Whole chat
// templates are compared with transformers in tests/oracle/chat_template_test.py.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "support/temporary_folder.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/jinja_template.h"

namespace megalith {
namespace {

const char* const kVariables = R"({"name": "Ada", "n": 7, "half": 0.5, "yes": true, "none_here": null,
  "words": ["one", "two", "drei", "ÄÖ"], "message": {"role": "user", "content": " a\n b ", "items": 3},
  "people": [{"name": "x", "age": 3}, {"name": "Y", "age": 5}, {"name": "z"}], "é": "ü"})";

std::string jinja(const std::string& source) {
  const JinjaValue variables = JinjaValue::from_json(parse_ordered_json(kVariables, "variables"));
  return JinjaTemplate(source, "t.jinja").render(*variables.members(), {.work = 40'000'000});
}

std::string jinja_problem(const std::string& source) {
  try {
    return "rendered: " + jinja(source);
  } catch (const UserError& error) {
    return error.message();
  }
}

TEST(Jinja, BlanksAroundTagsGoAsTransformersHasThemGo) {
  EXPECT_EQ(jinja("a\n  {% if yes %}  \n  b\n  {% endif %}\nc\n"), "a\n  \n  b\nc");
  EXPECT_EQ(jinja("a \n {%- if yes -%} \n b {%- endif %}\n c"), "ab c");
  EXPECT_EQ(jinja("a\n  {%+ if yes %}b{% endif +%}\nc"), "a\n  b\nc");
  EXPECT_EQ(jinja("  {# note {{ #}\nx {#- more -#} y\n  {{ 1 }}\n\n"), "xy\n  1\n");
  EXPECT_EQ(jinja("{{ '}}' }}{{ {'a': {'b': 1}}['a'] }}"), "}}{'b': 1}");
  EXPECT_EQ(jinja("a\r\nb\r{{ 'x\\\ny' }} {"), "a\nb\nxy {");
}

TEST(Jinja, ExpressionsFollowPython) {
  EXPECT_EQ(jinja("{{ 2 + 3 * 2 ** 3 // 5 - 7 % 4 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** -1 }}"),
            "3 -4 2 3.5 0.5");
  EXPECT_EQ(jinja("{{ 1.0 }} {{ 1e16 }} {{ 0.1 + 0.2 }} {{ true }} {{ none }} {{ missing }}|"),
            "1.0 1e+16 0.30000000000000004 True None |");
  EXPECT_EQ(jinja("{{ 'a' ~ 1 ~ none }} {{ 'ab' * 2 }} {{ [1] + ['x', none] }} {{ {'k': 'it\\'s'} }}"),
            "a1None abab [1, 'x', None] {'k': \"it's\"}");
  EXPECT_EQ(jinja("{{ 1 < n <= 7 }} {{ 'a' in 'cat' and 'x' not in words }} {{ not yes or name == 'Ada' }}"),
            "True True True");
  EXPECT_EQ(jinja("{{ 'x' if n > 8 else 'y' }}{{ 'z' if n > 8 }}{{ missing or 'w' }}{{ '' and 1 }}"), "yw");
  EXPECT_EQ(jinja("{{ words[1:3] }} {{ words[::-1][0] }} {{ words[-1][0] }} {{ name[:-1] }} {{ 'ÄÖÜ'[1:] }}"),
            "['two', 'drei'] ÄÖ Ä Ad ÖÜ");
  EXPECT_EQ(
      jinja("{{ message['items'] }} {% for k, v in message.items() if k != 'content' %}{{ k }}={{ v }};{% endfor %}"),
      "3 role=user;items=3;");
  EXPECT_EQ(jinja("{{ people[2].age is defined }} {{ message.get('no', 'd') }} {{ 1 == 1.0 == true }} {{ words[9] }}|"),
            "False d True |");
}

TEST(Jinja, StatementsScopeTheirVariables) {
  EXPECT_EQ(jinja("{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}"), "231");
  EXPECT_EQ(jinja("{% set ns = namespace(a=1) %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}"),
            "4");
  EXPECT_EQ(jinja("{% if n > 9 %}a{% elif n > 5 %}{% set y = 'b' %}{{ y }}{% else %}c{% endif %}{{ y }}"), "bb");
  EXPECT_EQ(
      jinja("{% for w in words %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.revindex0 }} {% endfor %}"),
      "1TrueFalse3 2FalseFalse2 3FalseFalse1 4FalseTrue0 ");
  EXPECT_EQ(jinja("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i > 4 %}{% break %}{% endif %}{{ i }}"
                  "{% endfor %}{% for i in [] %}{% else %}none{% endfor %}"),
            "0134none");
  EXPECT_EQ(
      jinja("{% for i in [1, 1, 2] %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i) }}{{ loop.previtem }} {% endfor %}"),
      "aTrue bFalse1 aTrue1 ");
  EXPECT_EQ(
      jinja("{% macro m(a, b='x') %}[{{ a }}{{ b }}{{ name }}]{% endmacro %}{{ m(1) }}{{ m(b=2, a=3) }}{{ m() }}"),
      "[1xAda][32Ada][xAda]");
  EXPECT_EQ(jinja("{% set t %}a{{ n }}{% endset %}{{ t|upper }}{% generation %}g{% endgeneration %}"), "A7g");
  EXPECT_EQ(jinja("{% set a, b = (1, 2) %}{{ a }}{{ b }}{% for i in words if i|length > 3 %}{{ i }}{% endfor %}"),
            "12drei");
}

TEST(Jinja, FiltersTestsAndMethods) {
  EXPECT_EQ(
      jinja("{{ message.content|trim }}|{{ '  x '.lstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'a-b'.split('-')[1] }}"),
      "a\n b|x |a|b");
  EXPECT_EQ(
      jinja("{{ words|join(', ') }} {{ people|map(attribute='name')|list }} {{ words|length }} {{ 'ÄÖ'|length }}"),
      "one, two, drei, ÄÖ ['x', 'Y', 'z'] 4 2");
  EXPECT_EQ(
      jinja("{{ people|selectattr('age', 'gt', 4)|list|length if false else people|selectattr('age')|list|length }}"),
      "2");
  EXPECT_EQ(
      jinja("{{ missing|default('d') }}{{ ''|d('e', true) }}{{ words|first }}{{ words|last|lower }}{{ '7'|int + 1 }}"),
      "deoneäö8");
  EXPECT_EQ(jinja("{{ message|tojson }} {{ [1, 'é\"', none, 0.5]|tojson }} {{ {'a': [1, {}]}|tojson(indent=2) }}"),
            "{\"role\": \"user\", \"content\": \" a\\n b \", \"items\": 3} [1, \"é\\\"\", null, 0.5] "
            "{\n  \"a\": [\n    1,\n    {}\n  ]\n}");
  EXPECT_EQ(jinja("{{ name is string }} {{ n is number }} {{ words is iterable and words is not mapping }} "
                  "{{ n is odd }} {{ n is divisibleby 7 }} {{ none_here is none }} {{ nope is not defined }}"),
            "True True True True True True True");
  EXPECT_EQ(jinja("{{ 'a b'.title() }} {{ 'aXbX'.replace('X', '-', 1) }} {{ 'abc'.startswith(('x', 'ab')) }} "
                  "{{ 'a,b,c'.split(',', 1) }} {{ 'a  b'.split() }} {{ 'a\nb'|indent(2) }} {{ 'aé'.find('é') }}"),
            "A B a-bX True ['a', 'b,c'] ['a', 'b'] a\n  b 1");
}

TEST(Jinja, WhatIsNotKnownIsNamedWithItsLine) {
  EXPECT_EQ(jinja_problem("a\n{% include 'x' %}"), "t.jinja:2: the statement 'include' is not known here");
  EXPECT_EQ(jinja_problem("\n\n{{ n|batch(3) }}"), "t.jinja:3: the filter 'batch' is not known here");
  EXPECT_EQ(jinja_problem("{{ n is nice }}"), "t.jinja:1: the test 'nice' is not known here");
  EXPECT_EQ(jinja_problem("{{ 1 +\n }}"), "t.jinja:2: expected a value, found '}}'");
  EXPECT_EQ(jinja_problem("{% if n %}\n"), "t.jinja:1: expected '{% endif %}', found the end of the template");
  EXPECT_EQ(jinja_problem("x\n{{ 'a"), "t.jinja:2: a text in quotes does not end");
  EXPECT_EQ(jinja_problem("x\n{{ a"), "t.jinja:2: a tag '{{' does not end");
  EXPECT_EQ(jinja_problem("{{ a ? b }}"), "t.jinja:1: the character '?' belongs to no word of a template");
  EXPECT_EQ(jinja_problem("{{ f(*words) }}"), "t.jinja:1: arguments from a list or dict ('*') are not known here");
  EXPECT_EQ(jinja_problem("{% for a in [] recursive %}{% endfor %}"), "t.jinja:1: a recursive loop is not known here");
}

TEST(Jinja, WhatCannotBeComputedIsNamedWithItsLine) {
  EXPECT_EQ(jinja_problem("\n{{ nope.x }}"), "t.jinja:2: nope is undefined");
  EXPECT_EQ(jinja_problem("{{ 'a' + 1 }}"), "t.jinja:1: '+' cannot join a text and a number");
  EXPECT_EQ(jinja_problem("{{ 'a' + nope }}"), "t.jinja:1: nope is undefined");
  EXPECT_EQ(jinja_problem("{{ 1 // 0 }}"), "t.jinja:1: division by zero");
  EXPECT_EQ(jinja_problem("{{ words.append(1) }}"), "t.jinja:1: 'append' changes a list, which templates may not");
  EXPECT_EQ(jinja_problem("{{ 9223372036854775807 + 1 }}"), "t.jinja:1: a whole number beyond 64 bits");
  EXPECT_EQ(jinja_problem("{{ name() }}"), "t.jinja:1: a text is called as a function");
  EXPECT_EQ(jinja_problem("a\n{{ raise_exception('no ' ~ name) }}"), "t.jinja:2: the template says: no Ada");
}

TEST(Jinja, HostileTemplatesEndSoon) {
  const std::string deep = std::string(5000, '(') + "1" + std::string(5000, ')');
  EXPECT_EQ(jinja_problem("{{ " + deep + " }}"), "t.jinja:1: the expression nests too deeply");
  std::string chain = "{{ 1";
  for (int i = 0; i < 2000; ++i) chain += " + 1";
  EXPECT_EQ(jinja_problem(chain + " }}"), "t.jinja:1: the expression is too deep");
  std::string ifs;
  for (int i = 0; i < 500; ++i) ifs += "{% if n %}";
  EXPECT_EQ(jinja_problem(ifs), "t.jinja:1: statements nest too deeply");
  EXPECT_EQ(jinja_problem("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
            "t.jinja:1: macros and expressions nest too deeply");
  EXPECT_EQ(jinja_problem("{{ 'x' * 999999999999 }}"), "t.jinja:1: a text of more than 16777216 bytes");
  EXPECT_EQ(jinja_problem(
                "{% set ns = namespace(t='abcd') %}{% for i in range(99) %}{% set ns.t = ns.t + ns.t %}{% endfor %}"),
            "t.jinja:1: a text of more than 16777216 bytes");
  EXPECT_EQ(jinja_problem("{% set ns = namespace(t=[]) %}{% for i in range(99) %}{% set ns.t = [ns.t] %}{% endfor %}"),
            "t.jinja:1: lists that nest deeper than 64");
  EXPECT_EQ(jinja_problem("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"),
            "t.jinja:1: the template does more work than is allowed (40000000 units, about a second)");
}

TEST(ChatTemplate, IsFoundBesideTheTokenizer) {
  const test::TemporaryFolder folder;
  const auto text = [&] {
    return load_chat_template(folder.path() / "tokenizer.json")
        .render(parse_ordered_json(R"([{"role": "user", "content": "hi"}])", "m"), nullptr, true);
  };
  EXPECT_THROW(text(), UserError);
  write_file_atomic(folder.path() / "tokenizer_config.json",
                    R"({"bos_token": {"content": "<s>"}, "chat_template": [{"name": "tool_use", "template": "no"},
                 {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}{{ tools }}"}]})");
  EXPECT_EQ(text(), "<s>hiNone");
  write_file_atomic(folder.path() / "chat_template.jinja", "{{ messages|length }}{{ add_generation_prompt }}\n");
  EXPECT_EQ(text(), "1True");
}

TEST(ChatTemplate, SaysThatContentIsAListOfPartsWhereItFails) {
  const OrderedJson messages = parse_ordered_json(
      R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}])", "m");
  const auto render = [&](const char* source) {
    return ChatTemplate(source, "t.jinja", {}).render(messages, nullptr, false);
  };
  EXPECT_EQ(render("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
                   "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"),
            "qa");
  EXPECT_EQ(render("{{ messages[1].content }}"), "[{'type': 'text', 'text': 'a'}]");  // transformers' words, too
  try {
    render("{% for m in messages %}\n{{ m.role + m.content }}{% endfor %}");
    FAIL() << "rendered";
  } catch (const UserError& error) {
    EXPECT_EQ(error.message(),
              "t.jinja:2: '+' cannot join a text and a list; the content of message 2 is a list of parts "
              "({\"type\": \u2026}), which this template may not take");
    EXPECT_NE(error.remedy().find("the parts' texts joined"), std::string::npos);
  }
}

}  // namespace
}  // namespace megalith
