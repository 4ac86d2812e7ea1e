// Templates that want much: each ends within its budget, and no more memory is taken than is counted. That counts are
// true to what is executed is held by tests/fuzz, which looks for templates that are dearer than they count.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/jinja_template.h"

namespace {

std::atomic<int64_t> live_bytes{0}, most_live_bytes{0};

void* allocated(size_t size) {
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  const int64_t live = live_bytes += static_cast<int64_t>(::malloc_usable_size(memory));
  if (live > most_live_bytes) most_live_bytes = live;
  return memory;
}
void freed(void* memory) {
  if (memory != nullptr) live_bytes -= static_cast<int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

// All of this program, so that memory is counted as it is taken.
void* operator new(size_t size) { return allocated(size); }
void operator delete(void* memory) noexcept { freed(memory); }
void operator delete(void* memory, size_t) noexcept { freed(memory); }

namespace megalith {
namespace {

struct Spent {
  JinjaUse use;
  int64_t bytes = 0;    // that were there at once
  std::string message;  // "" where it was rendered
};

Spent spend(const std::string& source, const JinjaLimits& limits) {
  const JinjaValue variables = JinjaValue::from_json(parse_ordered_json(
      R"({"t": "text", "messages": [{"role": "user", "content": "é"}, {"role": "assistant", "content": ""}]})", "v"));
  const JinjaTemplate made(source, "t.jinja");
  Spent spent;
  const int64_t before = live_bytes;
  most_live_bytes = before;
  try {
    made.render(*variables.members(), limits, &spent.use);
  } catch (const UserError& error) {
    spent.message = error.message();
  }
  spent.bytes = most_live_bytes - before;
  return spent;
}

std::string repeated_words(int count, const std::string& word, const std::string& between = ",") {
  std::string out;
  for (int i = 0; i < count; ++i) {
    if (i > 0) out += between;
    out += word;
    for (size_t at; (at = out.find('#')) != std::string::npos;) out.replace(at, 1, std::to_string(100 + i));
  }
  return out;
}

// `body` for a long time, after `before`.
std::string again(const std::string& before, const std::string& body) {
  return before + "{% for i in range(99999) %}" + body + "{% endfor %}";
}

constexpr const char* kWork = "does more work";
constexpr const char* kHeld = "at once";
constexpr const char* kList = "a list of more than";
constexpr const char* kText = "a text of more than";

// A megabyte each: the limits below are for that.
const std::string kA = "{% set a = 'a' * 1000000 %}", kUmlaut = "{% set a = 'ä' * 500000 %}";

struct Attack {
  const char* what;
  std::string source;
  const char* end;  // the limit that ends it; "": rendered within them
};

const std::vector<Attack> kAttacks = {
    {"split at blanks", again("{% set a = 'a ' * 20000 %}", "{% set x = a.split() %}"), kWork},
    {"split into too many", "{{ ('a ' * 500000).split()|length }}", kHeld},
    {"find of half a text", again("{% set n = 'a' * 499999 ~ 'b' %}" + kA, "{% set x = a.find(n) %}"), kWork},
    {"rfind of half a text", again("{% set n = 'b' ~ 'a' * 499999 %}" + kA, "{% set x = a.rfind(n) %}"), kWork},
    {"find that nearly fits", again("{% set n = 'a' * 100 ~ 'b' ~ 'a' * 100 %}" + kA, "{% set x = a.find(n) %}"),
     kWork},
    {"find of one letter", again(kA, "{% set x = a.find('b') %}"), kWork},
    {"in a text", again(kA, "{% if 'ab' in a %}{% endif %}"), kWork},
    {"count", again(kA, "{% set x = a.count('a') %}"), kWork},
    {"~ that is kept", again(kA + "{% set ns = namespace(l=[]) %}", "{% set ns.l = ns.l + [a ~ a] %}"), kHeld},
    {"~ that is dropped", "{% set a = 'a' * 999999 %}{% for i in range(999) %}{% set x = a ~ a %}{% endfor %}", kWork},
    {"~ that grows", again("{% set ns = namespace(t='') %}", "{% set ns.t = ns.t ~ 'some text' %}"), kWork},
    {"+ of texts", again(kA, "{% set x = a + a %}"), kHeld},
    {"* of texts", again("", "{% set x = 'ab' * 500000 %}"), kWork},
    {"+ of lists", again("{% set ns = namespace(l=[]) %}", "{% set ns.l = ns.l + [i] %}"), kWork},
    {"* of lists", again("", "{% set x = [1] * 9999 %}"), kWork},
    {"namespaces", again("", "{% set n = namespace(x='a' * 1000000) %}"), kHeld},
    {"empty namespaces", again("", "{% set n = namespace() %}"), kWork},
    {"namespaces with members",
     again("{% set d = {" + repeated_words(900, "'k#': 1") + "} %}", "{% set n = namespace(d) %}"), kHeld},
    {"map of a thousand", kA + "{{ ([a] * 1000)|map('upper')|list|length }}", kWork},
    {"map of a map", again("{% set l = [[[['x'] * 9] * 9] * 9] %}", "{% set x = l|map('map', 'map', 'upper')|list %}"),
     kWork},
    {"map that makes lists", "{{ ([range(9999)] * 1000)|map('reverse')|list|length }}", kList},
    {"select with in", again("{% set l = range(9999) %}", "{% set x = l|select('in', l)|list %}"), kWork},
    {"selectattr with a long path",
     again("{% set l = [{'a': 1}] * 99 %}",
           "{% set x = l|map(attribute='" + repeated_words(99, "b", ".") + "', default=1)|list %}"),
     "is undefined"},
    {"characters of a text", again(kUmlaut, "{% for c in a %}{% endfor %}"), kHeld},
    {"an item of a text", again(kUmlaut, "{% set x = a[400000] %}"), kWork},
    {"a slice of a text", again(kUmlaut, "{% set x = a[1:] %}"), kWork},
    {"a text backwards", again(kUmlaut, "{% set x = a[::-1] %}"), kHeld},
    {"a slice of a list", again("{% set l = range(9999) %}", "{% set x = l[::-1] %}"), kWork},
    {"length", again(kUmlaut, "{% set x = a|length %}"), kWork},
    {"dicts with long names", kA + "{% set d = {" + repeated_words(60, "a ~ #: 1") + "} %}", kHeld},
    {"equal dicts",
     again(
         "{% set d = {" + repeated_words(500, "'a#': 1") + "} %}{% set e = {" + repeated_words(500, "'a#': 1") + "} %}",
         "{% if d == e %}{% endif %}"),
     kWork},
    {"get of a large dict",
     again("{% set d = {" + repeated_words(800, "'a#': 1") + "} %}", "{% set x = d.get('b', d['c']) %}"), kWork},
    {"items of a dict", again("{% set d = {" + repeated_words(800, "'a#': 1") + "} %}", "{% set x = d.items()|list %}"),
     kWork},
    {"dictsort",
     again("{% set a = 'A' * 9000 %}{% set d = {" + repeated_words(99, "a ~ #: 1") + "} %}",
           "{% set x = d|dictsort %}"),
     kWork},
    {"unique", again("{% set l = range(900)|map('string')|list %}", "{% set x = l|unique %}"), kWork},
    {"replace of nothing", again("", "{% set x = ('a' * 99999).replace('', 'b') %}"), kWork},
    {"replace of every letter", again("{% set a = 'a' * 99999 %}", "{% set x = a|replace('a', 'b') %}"), kWork},
    {"replace by long texts", "{{ ('a' * 99999).replace('a', 'b' * 1000) }}", kHeld},
    {"strip of many", again("{% set n = 'b' * 99999 ~ 'a' %}" + kA, "{% set x = a.strip(n) %}"), kWork},
    {"title", again(kUmlaut, "{% set x = a.title() %}"), kWork},
    {"tojson of escapes", again("{% set a = '\\x01' * 99999 %}", "{% set x = a|tojson %}"), kWork},
    {"tojson with an indent", again("{% set l = [[[[[[[[1]]]]]]]] * 99 %}", "{% set x = l|tojson(indent=64) %}"),
     kWork},
    {"repr of escapes", again("{% set a = ['\\x01' * 99999] %}", "{% set x = a|string %}"), kWork},
    {"repr of one list many times", again("{% set l = ['a' * 99999] * 999 %}", "{% set x = l|string %}"), kHeld},
    {"join with a long text", "{{ ([''] * 9999)|join('a' * 10000) }}", kHeld},
    {"join as a method", "{{ ('a' * 10000).join([''] * 9999) }}", kHeld},
    {"indent of many lines", again("{% set a = '\\n' * 99999 %}", "{% set x = a|indent(0) %}"), kWork},
    {"indent by much", "{{ ('\\n' * 9999)|indent(1000, true, true) }}", kHeld},
    {"splitlines", again("{% set a = '\\n' * 9999 %}", "{% set x = a.splitlines() %}"), kWork},
    {"rsplit", again("{% set a = 'a,' * 9999 %}", "{% set x = a.rsplit(',') %}"), kWork},
    {"in a list", again("{% set l = range(9999) %}", "{% if -1 in l %}{% endif %}"), kWork},
    {"index of a list", again("{% set l = range(9999)|list %}", "{% set x = l.count(-1) %}"), kWork},
    {"in a list of long texts", kA + "{% set l = [a ~ ''] * 9999 %}{% if a[1:] ~ 'b' in l %}{% endif %}", kWork},
    {"order of long texts", again(kA + "{% set b = a[1:] ~ 'b' %}", "{% if a < b %}{% endif %}"), kWork},
    {"order of lists",
     again("{% set a = [[range(9999)|list]] %}"
           "{% set b = [[range(9999)|list + [1]]] %}",
           "{% if a < b %}{% endif %}"),
     kWork},
    {"equal lists that share",
     again("{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(12) %}{% set ns.a = [ns.a, ns.a] %}"
           "{% set ns.b = [ns.b, ns.b] %}{% endfor %}",
           "{% if ns.a == ns.b %}{% endif %}"),
     kWork},
    {"startswith of many", kA + "{% set l = [a ~ ''] * 9999 %}{{ a[1:].startswith(l) }}", kWork},
    {"isdigit", again("{% set a = '1' * 1000000 %}", "{% if a.isdigit() %}{% endif %}"), kWork},
    {"is lower", again(kA, "{% if a is lower %}{% endif %}"), kWork},
    {"numbers of many digits", again("{% set a = '1' * 4000 %}", "{% set x = a|int %}"), kWork},
    {"times", again("", "{% set x = strftime_now('%c' * 90) %}"), kWork},
    {"loops", again("", "{% for j in range(999) %}{% endfor %}"), kWork},
    {"loops that are kept", again("{% set ns = namespace(l=[]) %}", "{% set ns.l = ns.l + [loop] %}"), kWork},
    {"functions that are kept", again("{% set ns = namespace(l=[]) %}", "{% set ns.l = [ns.l[-99:], 'x'.upper] %}"),
     "lists that nest"},
    {"macros that fork",
     "{% macro m(n) %}{% if n > 0 %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}", kWork},
    {"macros that hold texts",
     kA + "{% macro m(n) %}{{ a }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(90) }}", kHeld},
    {"macros with many parameters",
     "{% macro m(n, " + repeated_words(9999, "a#") +
         ") %}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(90) }}",
     kHeld},
    {"arguments by many names",
     "{% macro m(" + repeated_words(9999, "a#") + ") %}{% endmacro %}{{ m(" + repeated_words(9999, "a#=1") + ") }}",
     kWork},
    {"blocks that are set", again(kA, "{% set x %}{{ a }}{{ a }}{% endset %}"), kHeld},
    {"what is written", again(kA, "{{ a }}"), kHeld},
    {"items that are not there",
     again(kA + "{% set d = {'b': 1} %}{% set ns = namespace(l=[]) %}", "{% set ns.l = ns.l + [d[a]] %}"), kWork},
};

constexpr JinjaLimits kSmall{.work = 20'000'000, .made_bytes = 64 << 20, .held_bytes = 8 << 20};

// Bytes of a list and a map while they grow, and the renderer's own.
int64_t bound_of(const JinjaLimits& limits) { return limits.held_bytes * 3 / 2 + (2 << 20); }

TEST(JinjaBudget, EveryAttackEndsWithinIt) {
  for (const Attack& attack : kAttacks) {
    const Spent spent = spend(attack.source, kSmall);
    const std::string where = "t.jinja:1: ";
    EXPECT_TRUE(spent.message.starts_with(where)) << attack.what << ": " << spent.message;
    EXPECT_NE(spent.message.find(attack.end), std::string::npos) << attack.what << ": " << spent.message;
    EXPECT_LE(spent.use.work, kSmall.work) << attack.what;
    EXPECT_LE(spent.use.made_bytes, kSmall.made_bytes) << attack.what;
    EXPECT_LE(spent.use.most_held_bytes, kSmall.held_bytes) << attack.what;
    EXPECT_LE(spent.bytes, bound_of(kSmall)) << attack.what;
  }
}

TEST(JinjaBudget, WhatIsMadeAndDroppedCountsToo) {
  const Spent spent = spend(again(kA, "{% set x = a ~ a %}"), {});
  EXPECT_EQ(spent.message, "t.jinja:1: the template makes texts and lists of more than 1024 MiB");
}

TEST(JinjaBudget, AllIsGivenBack) {
  const int64_t before = live_bytes;
  for (int i = 0; i < 3; ++i) {
    for (const Attack& attack : kAttacks) spend(attack.source, {.work = 200'000});
  }
  EXPECT_LT(live_bytes - before, 1 << 16);
}

// Twice the text is twice the work, in what once compared or copied anew at every place.
TEST(JinjaBudget, WorkGrowsAsTexts) {
  const std::pair<const char*, const char*> kRules[] = {
      {"{{ ('a ' * ", ").split()|length }}"},           {"{{ ('a' * ", ").find('a' * 9999 ~ 'b') }}"},
      {"{{ ('a,' * ", ").rsplit(',')|length }}"},       {"{{ ('a,' * ", ").rsplit(',', 9)|length }}"},
      {"{{ ('a' * ", ").replace('a', 'bc')|length }}"}, {"{{ ('ä' * ", ")[::-1]|length }}"},
      {"{{ ('\\n' * ", ").splitlines()|length }}"},     {"{{ ('a\\n' * ", ")|indent|length }}"},
      {"{{ ('ab ' * ", ").title()|length }}"},          {"{{ ([''] * ", ")|join(', ')|length }}"},
  };
  for (const auto& [head, tail] : kRules) {
    const Spent one = spend(head + std::string("20000") + tail, {}),
                two = spend(head + std::string("40000") + tail, {});
    EXPECT_EQ(one.message + two.message, "") << head;
    EXPECT_LT(static_cast<double>(two.use.work), 2.2 * static_cast<double>(one.use.work)) << head;
  }
}

TEST(JinjaBudget, TheLimitsAreASecondAndAQuarterOfAGigabyte) {
  const std::pair<std::string, const char*> kFound[] = {
      {"{{ ('a ' * 8000000).split() }}", kList},
      {"{{ ('a' * 16000000).find('a' * 8000000 ~ 'b') }}", ""},
      {"{% set x = 'a' * 8000000 %}{% set ns = namespace(l=[]) %}{% for i in range(1200) %}\n"
       "{% set ns.l = ns.l + [x ~ x] %}{% endfor %}",
       "t.jinja:2: the template holds more than 256 MiB at once"},
      {"\n\n{% for i in range(300) %}{% set n = namespace(x='a' * 16000000) %}{% endfor %}",
       "t.jinja:3: the template holds more than 256 MiB at once"},
      {"{% set l = ['a' * 16000000] * 1000 %}{{ l|map('upper')|list }}", "(1000000000 units, about a second)"},
  };
  for (const auto& [source, end] : kFound) {
    const Spent spent = spend(source, {});
    EXPECT_NE(spent.message.find(end), std::string::npos) << spent.message;
    EXPECT_EQ(spent.message.empty(), *end == '\0') << spent.message;
    EXPECT_LE(spent.bytes, bound_of({})) << source;
  }
}

TEST(JinjaBudget, LongConversationsStayFarWithinIt) {
  OrderedJson messages = OrderedJson::array();
  for (int i = 0; i < 2000; ++i) {
    messages.push_back(
        {{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::string(2000, i % 7 == 0 ? 'a' : ' ')}});
  }
  const JinjaValue conversation = JinjaValue::from_json(messages);
  const JinjaTemplate chat(
      "{% for m in messages %}{% if loop.first and m.role == 'system' %}{% continue %}{% endif %}"
      "{% set c = m.content|trim %}{% if '</think>' in c %}{% set c = c.split('</think>')[-1].lstrip('\\n') %}{% endif "
      "%}"
      "{{ '<|im_start|>' + m['role'] + '\\n' + m.content ~ c ~ '<|im_end|>\\n' }}{% endfor %}",
      "chat");
  JinjaUse use;
  EXPECT_GT(chat.render({{"messages", conversation}}, {}, &use).size(), 4'000'000u);
  EXPECT_LT(use.work, JinjaLimits{}.work / 10);
  EXPECT_LT(use.made_bytes, JinjaLimits{}.made_bytes / 10);
  EXPECT_LT(use.most_held_bytes, JinjaLimits{}.held_bytes / 10);
}

TEST(JinjaBudget, WhatIsReadIsBounded) {
  const auto problem = [](const std::string& source) {
    try {
      return spend(source, {}).message;
    } catch (const UserError& error) {
      return error.message();
    }
  };
  EXPECT_EQ(problem(std::string(2 << 20, 'a')),
            "t.jinja:1: the template has 2097152 bytes, and at most 1048576 are read");
  EXPECT_EQ(problem("{{ " + std::string(300, 'a') + " }}"), "t.jinja:1: a name of more than 200 characters");
  const std::string said = problem("{{ raise_exception('ä' * 1000000) }}");
  EXPECT_LT(said.size(), 2100u);
  EXPECT_TRUE(said.starts_with("t.jinja:1: the template says: ä") && said.ends_with("ä …")) << said;
}

}  // namespace
}  // namespace megalith
