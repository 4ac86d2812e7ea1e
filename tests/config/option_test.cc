// Options: reading values of every type, ranges, layers, names; and the text helpers below them.
#include "config/option.h"

#include <gtest/gtest.h>

#include "config/option_checks.h"
#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

enum class Decay { kConstant, kLinear, kInverseSquareRoot };

struct Everything {
  bool flag = false;
  int64_t count = 3;
  double rate = 1e-4;
  std::string text = "plain";
  std::optional<bool> maybe_flag;
  std::optional<int64_t> maybe_count;
  std::optional<double> maybe_rate;
  std::optional<std::string> maybe_text;
  std::vector<int64_t> counts;
  std::vector<double> rates;
  std::vector<std::string> texts;
  std::string dtype = "fp32";
  std::optional<std::string> balance = "none";
  Decay decay = Decay::kLinear;

  void visit(OptionVisitor& v) {
    v.group("All types");
    v.field("flag", flag, "A flag.");
    v.field("count", count, "A count.").unit("samples").at_least(1).at_most(1000000).alias("number");
    v.field("rate", rate, "A rate.").above(0).below(1);
    v.field("text", text, "A text.");
    v.field("maybe_flag", maybe_flag, "A flag or nothing.");
    v.field("maybe_count", maybe_count, "A count or nothing.");
    v.field("maybe_rate", maybe_rate, "A rate or nothing.");
    v.field("maybe_text", maybe_text, "A text or nothing.");
    v.field("counts", counts, "Counts.").at_least(0);
    v.field("rates", rates, "Rates.");
    v.field("texts", texts, "Texts.");
    v.field("dtype", dtype, "A word.").words({"fp32", "bf16"});
    v.field("balance", balance, "A word or nothing.").words({"none", "aux_loss"});
    v.choice("decay", decay, {"constant", "linear", "inverse-square-root"}, "An enumeration.");
  }
};

const OptionSource kFile{OptionLayer::kFile, "recipe.yaml:31"};
const OptionSource kCommandLine{OptionLayer::kCommandLine, "command line"};

struct OptionTest : testing::Test {
  Everything values;
  OptionSet set{values};

  Option& option(const std::string& name) { return *set.find(name); }
  // The message of what set() throws, or "" when it does not.
  std::string refusal(const std::string& name, const std::string& text, const OptionSource& source = kFile) {
    try {
      option(name).set(text, source);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(OptionTest, BooleansTakeAllEightWordsInAnyCase) {
  for (const char* text : {"true", "TRUE", "True", "1", "yes", "Yes", "on", "ON", " on "}) {
    values.flag = false;
    option("flag").set(text, kFile);
    EXPECT_TRUE(values.flag) << text;
  }
  for (const char* text : {"false", "False", "0", "no", "NO", "off", "Off"}) {
    values.flag = true;
    option("flag").set(text, kFile);
    EXPECT_FALSE(values.flag) << text;
  }
  for (const char* text : {"", "2", "y", "t", "truth", "01"}) EXPECT_NE(refusal("flag", text), "") << text;
}

TEST_F(OptionTest, IntegersAreExactOrRefused) {
  const std::pair<const char*, int64_t> accepted[] = {{"8", 8},   {"+8", 8},      {"1e6", 1000000}, {"1E+2", 100},
                                                      {"2.0", 2}, {"2.50e1", 25}, {"00012", 12},    {"1200e-2", 12}};
  for (const auto& [text, value] : accepted) {
    option("count").set(text, kFile);
    EXPECT_EQ(values.count, value) << text;
  }
  for (const char* text : {"1_000", "2.5", "1e-1", "0x10", "8 ", "eight", "", "-", "1e", "e5", ".", "1.2.3", "++1"}) {
    if (std::string(text) == "8 ") continue;  // blanks around a number are no fault
    EXPECT_NE(refusal("count", text), "") << text;
  }
}

TEST_F(OptionTest, IntegersReachTheEndsOf64Bits) {
  EXPECT_EQ(parse_integer("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(parse_integer("-9223372036854775808"), INT64_MIN);
  EXPECT_EQ(parse_integer("9007199254740993.0"), 9007199254740993);  // no double holds this
  EXPECT_EQ(parse_integer("1e18"), 1000000000000000000);
  EXPECT_EQ(parse_integer("-1e3"), -1000);
  EXPECT_EQ(parse_integer("0e99"), 0);
  EXPECT_EQ(parse_integer("9223372036854775808"), std::nullopt);
  EXPECT_EQ(parse_integer("1e19"), std::nullopt);
  EXPECT_EQ(parse_integer("1e99999999999"), std::nullopt);
}

TEST_F(OptionTest, NumbersTakeExponentsAndRefuseTheInfinite) {
  for (const auto& [text, value] : {std::pair{"1e-5", 1e-5}, {"0.5", 0.5}, {".25", .25}, {"2.5E-1", .25}}) {
    option("rate").set(text, kFile);
    EXPECT_EQ(values.rate, value) << text;
  }
  for (const char* text : {"inf", "nan", "1e400", "0,5", "1e-5x"}) EXPECT_NE(refusal("rate", text), "") << text;
}

TEST_F(OptionTest, RangesIncludeOrExcludeTheirBounds) {
  EXPECT_EQ(refusal("count", "1"), "");
  EXPECT_EQ(refusal("count", "1000000"), "");
  EXPECT_NE(refusal("count", "0"), "");
  EXPECT_NE(refusal("count", "1000001"), "");
  EXPECT_NE(refusal("rate", "0"), "");
  EXPECT_NE(refusal("rate", "1"), "");
  EXPECT_NE(refusal("counts", "3 -1"), "");  // every item
  EXPECT_EQ(option("count").range_text(), "at least 1 and at most 1000000");
  EXPECT_EQ(option("rate").range_text(), "above 0 and below 1");
}

TEST_F(OptionTest, ARefusedValueChangesNothing) {
  option("count").set("7", kFile);
  EXPECT_NE(refusal("count", "0"), "");
  EXPECT_EQ(values.count, 7);
  EXPECT_EQ(option("count").history().size(), 1u);
}

TEST_F(OptionTest, MessagesNamePlaceOptionTextAndWhatIsAccepted) {
  EXPECT_EQ(refusal("count", "two"),
            "recipe.yaml:31: count is 'two', but takes: integer at least 1 and at most 1000000\n"
            "  count: A count. Unit: samples.");
  EXPECT_EQ(refusal("count", "two", kCommandLine).substr(0, 16), "--count is 'two'");
  EXPECT_EQ(refusal("decay", "linaer"),
            "recipe.yaml:31: decay is 'linaer', but takes: one of constant, linear, inverse-square-root\n"
            "  did you mean 'linear'?");
  EXPECT_LT(refusal("count", std::string(5000, 'x')).size(), 400u);
}

TEST_F(OptionTest, NullUnsetsOptionalsAndGivesOthersTheirDefault) {
  for (const char* text : {"null", "None", "none", ""}) {
    values.maybe_count = 1;
    option("maybe_count").set(text, kFile);
    EXPECT_FALSE(values.maybe_count) << text;
    values.maybe_text = "x";
    option("maybe_text").set(text, kFile);
    EXPECT_FALSE(values.maybe_text) << text;
  }
  values.count = 9;
  option("count").set("null", kFile);
  EXPECT_EQ(values.count, 3);
  values.text = "x";
  option("text").set("none", kFile);
  EXPECT_EQ(values.text, "none");
  option("text").assign(WrittenValue::null(), kFile);
  EXPECT_EQ(values.text, "plain");
  option("maybe_text").assign({WrittenValue::Form::kQuoted, {"null"}}, kFile);
  EXPECT_EQ(values.maybe_text, "null");
}

TEST_F(OptionTest, WordsIgnoreCaseAndDashesAndBeatNull) {
  option("decay").set("Inverse_Square_Root", kFile);
  EXPECT_EQ(values.decay, Decay::kInverseSquareRoot);
  EXPECT_EQ(option("decay").text(), "inverse-square-root");
  option("dtype").set("BF16", kFile);
  EXPECT_EQ(values.dtype, "bf16");
  option("balance").set("none", kFile);
  EXPECT_EQ(values.balance, "none");
  option("balance").set("null", kFile);
  EXPECT_FALSE(values.balance);
}

TEST_F(OptionTest, ListsTakeBlanksCommasBracketsAndQuotes) {
  const std::vector<int64_t> expected{1, 2, 3};
  for (const char* text : {"1 2 3", "1,2,3", "[1, 2, 3]", " [1 2,3] ", "1, 2, 3,"}) {
    option("counts").set(text, kFile);
    EXPECT_EQ(values.counts, expected) << text;
  }
  option("texts").set("['a b', \"c,d\", e]", kFile);
  EXPECT_EQ(values.texts, (std::vector<std::string>{"a b", "c,d", "e"}));
  option("texts").assign({WrittenValue::Form::kList, {"a b", "c,d"}}, kFile);
  EXPECT_EQ(values.texts, (std::vector<std::string>{"a b", "c,d"}));
  option("counts").set("[]", kFile);
  EXPECT_TRUE(values.counts.empty());
  EXPECT_NE(refusal("counts", "[1, 2"), "");
  EXPECT_NE(refusal("texts", "'a"), "");
  EXPECT_NE(refusal("counts", "1 x"), "");
}

TEST_F(OptionTest, AListIsRefusedWhereOneValueIsMeant) {
  const WrittenValue list{WrittenValue::Form::kList, {"1", "2"}};
  EXPECT_THROW(option("count").assign(list, kFile), UserError);
  option("text").assign(list, kFile);  // ([0]*3+[1]*58) is a text, and so is its expansion
  EXPECT_EQ(values.text, "[1, 2]");
}

TEST_F(OptionTest, TextIsYamlWithQuotesOnlyWhereNeeded) {
  EXPECT_EQ(option("rate").text(), "0.0001");
  EXPECT_EQ(option("maybe_count").text(), "null");
  EXPECT_EQ(option("counts").text(), "[]");
  option("texts").assign({WrittenValue::Form::kList, {"/data/wiki", "null", "a: b", "1.5", ""}}, kFile);
  EXPECT_EQ(option("texts").text(), R"([/data/wiki, "null", "a: b", "1.5", ""])");
  EXPECT_EQ(yaml_scalar("a\"b\\\n"), R"("a\"b\\\x0a")");
}

TEST_F(OptionTest, LaterLayersWinInWhateverOrderTheyCome) {
  Option& count = option("count");
  EXPECT_TRUE(count.offer(WrittenValue::of("5"), kFile));
  EXPECT_TRUE(count.offer(WrittenValue::of("6"), kFile));  // the same layer again: last one wins
  EXPECT_TRUE(count.offer(WrittenValue::of("7"), kCommandLine));
  EXPECT_FALSE(count.offer(WrittenValue::of("8"), {OptionLayer::kModel, "config.json"}));
  EXPECT_EQ(values.count, 7);
  EXPECT_EQ(count.source().layer, OptionLayer::kCommandLine);
  ASSERT_EQ(count.history().size(), 4u);
  EXPECT_EQ(count.history()[3].second, "8");
  EXPECT_THROW(count.offer(WrittenValue::of("zero"), {OptionLayer::kModel, "config.json"}), UserError);
  EXPECT_EQ(values.count, 7);
}

TEST_F(OptionTest, DefaultsAreRememberedAndRestored) {
  EXPECT_TRUE(option("count").is_default());
  EXPECT_FALSE(option("count").is_set());
  option("count").set("3", kFile);
  EXPECT_TRUE(option("count").is_default());
  EXPECT_TRUE(option("count").is_set());
  option("decay").set("constant", kFile);
  option("decay").reset(kCommandLine);
  EXPECT_EQ(values.decay, Decay::kLinear);
}

TEST_F(OptionTest, NamesAndAliasesAreFoundWithDashesOrUnderscores) {
  EXPECT_EQ(set.find("maybe-count"), set.find("maybe_count"));
  EXPECT_EQ(set.find("number"), set.find("count"));
  EXPECT_EQ(set.find("Count"), nullptr);
  EXPECT_EQ(set.nearest("maybecount"), "maybe_count");
  EXPECT_EQ(set.nearest("maybe-cuont"), "maybe_count");
  EXPECT_EQ(set.nearest("something_else"), "");
}

TEST_F(OptionTest, TypesReadAsWords) {
  EXPECT_EQ(option("flag").type_text(), "true or false");
  EXPECT_EQ(option("maybe_count").type_text(), "integer");
  EXPECT_EQ(option("maybe_rate").type_text(), "number");
  EXPECT_EQ(option("texts").type_text(), "list of texts");
  EXPECT_EQ(option("dtype").type_text(), "one of fp32, bf16");
  EXPECT_TRUE(option("maybe_flag").is_switch());
  EXPECT_TRUE(option("rates").is_list());
  EXPECT_TRUE(option("balance").is_optional());
  EXPECT_FALSE(option("decay").is_optional());
}

struct Twice {
  int64_t a = 0, b = 0;
  void visit(OptionVisitor& v) {
    v.field("a_b", a, "One.");
    v.field("other", b, "Two.").alias("a-b");
  }
};

TEST(OptionSet, RefusesTwoDeclarationsOfOneName) {
  Twice twice;
  EXPECT_THROW(OptionSet{twice}, InternalError);
}

TEST(OptionSet, AnOppositeIsANameLikeAnyOther) {
  struct Bias {
    bool add_bias = true, other = false;
    void visit(OptionVisitor& v) {
      v.field("add_bias", add_bias, "Bias.").opposite("disable-bias");
      if (other) v.field("disable_bias", other, "Claims the same name.");
    }
  } bias;
  OptionSet set(bias);
  EXPECT_EQ(set.find("disable_bias"), nullptr);
  EXPECT_EQ(set.find_opposite("disable_bias"), set.find("add_bias"));
  EXPECT_EQ(set.nearest("disable_bais"), "disable_bias");
  bias.other = true;
  EXPECT_THROW(OptionSet{bias}, InternalError);
}

TEST(OptionSet, JoinsSeveralStructs) {
  struct Own {
    bool check = false;
    void visit(OptionVisitor& v) { v.field("check", check, "Only check."); }
  } own;
  Everything values;
  OptionSet set(own, values);
  EXPECT_NE(set.find("check"), nullptr);
  EXPECT_NE(set.find("decay"), nullptr);
}

struct OfModels {
  int64_t width = 4, window = 0;
  std::optional<int64_t> modules;
  bool is_causal = true;
  void visit(OptionVisitor& v) {
    v.group("Model", OptionTraits{}.of(kTextModels));
    v.field("width", width, "A width.").within(1, 8).read_by(kAllModels).toy("2");
    v.field("window", window, "A window.").read_by({ModelType::kGpt}).toy("3");
    v.field("modules", modules, "Modules.").read_by(kTextModels - kBiencoders);
    v.field("is_causal", is_causal, "Sees only what is before.").always(kEncoders, "false");
  }
};

std::vector<std::string> refused_by(OfModels given, ModelType type) {
  OfModels fresh;
  std::vector<UserError> errors;
  check_readers(OptionSet(given), OptionSet(fresh), type, errors);
  std::vector<std::string> texts;
  for (const UserError& error : errors) texts.push_back(error.message() + ": " + error.remedy());
  return texts;
}

TEST(OptionChecks, AModelRefusesWhatItDoesNotRead) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(refused_by({.width = 5, .window = 3, .modules = 1, .is_causal = false}, ModelType::kGpt), Texts{});
  EXPECT_EQ(refused_by({.window = 3}, ModelType::kT5),
            Texts{"window is for model_type gpt, which is t5: set model_type to gpt, or leave window out"});
  EXPECT_EQ(refused_by({.modules = 1}, ModelType::kDiffusion),
            Texts{"modules is for model_type gpt, t5, bert or classifier, which is diffusion_model: leave modules out"});
  EXPECT_EQ(refused_by({.modules = 0}, ModelType::kDiffusion), Texts{});
}

TEST(OptionChecks, AnOptionThatAModelDoesNotReadMayBeSaidAsItAlwaysIs) {
  OfModels given, fresh;
  const OptionSet options(given), defaults(fresh);
  std::vector<UserError> errors;
  options.of(given.is_causal).set("false", {});
  check_readers(options, defaults, ModelType::kBert, errors);
  EXPECT_TRUE(errors.empty());
  OfModels causal;  // unset options are not refused
  EXPECT_TRUE(refused_by(causal, ModelType::kBert).empty());
}

TEST(OptionChecks, WhatAPresetSaysOfOtherModelsIsLeftOut) {
  OfModels given;
  const OptionSet options(given);
  const OptionSource preset{OptionLayer::kPreset, "tiny.yaml:1"}, file{OptionLayer::kFile, "exp.yaml:1"};
  options.of(given.width).set("6", preset);
  options.of(given.window).set("3", preset);
  options.of(given.modules).set("2", file);
  const Option& also = options.of(given.is_causal);
  EXPECT_EQ(leave_out_unread(options, ModelType::kDiffusion, also),
            std::vector<std::string>{"not read by model_type diffusion_model, so the file's do not count: window 3"});
  EXPECT_EQ(given.window, 0);
  EXPECT_EQ(given.width, 6);
  EXPECT_EQ(given.modules, 2);
  const auto notes = leave_out_unread(options, ModelType::kDiffusion, options.of(given.modules));
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_TRUE(notes[0].ends_with("do not count: modules 2"));
  EXPECT_TRUE(leave_out_unread(options, ModelType::kGpt, also).empty());
}

TEST(OptionChecks, NumbersBeyondTheirRangeAreTold) {
  OfModels given{.width = 9};
  std::vector<UserError> errors;
  check_ranges(OptionSet(given), errors);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].message(), "width is 9, expected at least 1 and at most 8");
  EXPECT_NE(errors[0].remedy().find("no published model"), std::string::npos);
}

TEST(OptionSet, FindsAnOptionByItsVariable) {
  OfModels given;
  const OptionSet options(given);
  EXPECT_EQ(options.of(given.window).name(), "window");
  EXPECT_THROW(options.of(OfModels().window), InternalError);
  for (const auto& option : options.options()) option->take_toy();
  EXPECT_EQ(given.width, 2);
  EXPECT_EQ(given.window, 0);  // there is none to shrink
}

TEST(EditDistance, CountsSwapsOfNeighboursOnce) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", "acb"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("ca", "abc"), 3u);  // optimal string alignment, not the unrestricted distance
}

TEST(Strings, NumbersReadAsAPersonWritesThem) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(950), "950");
  EXPECT_EQ(format_count(12400), "12.4 k");
  EXPECT_EQ(format_count(8030261248.0), "8.03 B");
  EXPECT_EQ(format_count(999999), "1.00 M");
  EXPECT_EQ(format_count(1.5), "1.50");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(41016937472), "38.2 GiB");
  EXPECT_EQ(format_bytes((1 << 20) - 1), "1.00 MiB");
  EXPECT_EQ(format_duration(0.831), "0.83 s");
  EXPECT_EQ(format_duration(45), "45 s");
  EXPECT_EQ(format_duration(192), "3 m 12 s");
  EXPECT_EQ(format_duration(3 * 3600 + 12 * 60 + 5), "3 h 12 m");
  EXPECT_EQ(format_duration(2 * 86400 + 4 * 3600), "2 d 4 h");
}

}  // namespace
}  // namespace megalith
