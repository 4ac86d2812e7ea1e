// JSON helpers: what is read, and what the messages say.
#include "core/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace megalith {
namespace {

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.message();
  }
  return "no error";
}

TEST(Json, SyntaxErrorsNameFileLineAndByte) {
  const std::string message = message_of([] { parse_json("{\n\"a\": 1,\n\"b\" 2}", "c.json"); });
  EXPECT_TRUE(message.starts_with("c.json:3: not valid JSON at byte ")) << message;
  EXPECT_TRUE(message_of([] { parse_json("", "c.json"); }).starts_with("c.json:1: not valid JSON at byte 0"));
  EXPECT_TRUE(message_of([] { parse_json("[1, 2", "c.json"); }).starts_with("c.json:1: not valid JSON at byte 5"));
}

TEST(Json, MissingFileNamesThePath) {
  EXPECT_EQ(message_of([] { load_json("/no/such.json"); }), "cannot open /no/such.json: No such file or directory");
}

TEST(Json, DepthIsLimited) {
  EXPECT_NO_THROW(parse_json(std::string(512, '[') + std::string(512, ']'), "d"));
  EXPECT_EQ(message_of([] { parse_json(std::string(100'000, '['), "d"); }),
            "d: nested deeper than 512 levels at byte 512");
  EXPECT_NO_THROW(parse_json("[\"" + std::string(1000, '[') + "\\\"[\"]", "d"));
}

TEST(Json, TypedGettersReadAndConvert) {
  const Json json = parse_json(R"({"i": 8, "f": 8.0, "d": 1e-5, "b": true, "s": "é", "v": [1, 2], "n": null})", "c");
  EXPECT_EQ(json_get<int64_t>(json, "i", "c"), 8);
  EXPECT_EQ(json_get<int64_t>(json, "f", "c"), 8);
  EXPECT_EQ(json_get<double>(json, "i", "c"), 8.0);
  EXPECT_EQ(json_get<double>(json, "d", "c"), 1e-5);
  EXPECT_TRUE(json_get<bool>(json, "b", "c"));
  EXPECT_EQ(json_get<std::string>(json, "s", "c"), "é");
  EXPECT_EQ(json_get<std::vector<int64_t>>(json, "v", "c"), (std::vector<int64_t>{1, 2}));
  EXPECT_FALSE(json_find<int64_t>(json, "n", "c"));
  EXPECT_FALSE(json_find<int64_t>(json, "absent", "c"));
  EXPECT_EQ(json_get_or<int64_t>(json, "absent", 3, "c"), 3);
}

TEST(Json, WrongTypesAreNamed) {
  const Json json = parse_json(R"({"h": "big", "x": 1.5, "v": [1, "2"], "u": 18446744073709551615})", "config.json");
  EXPECT_EQ(message_of([&] { json_get<int64_t>(json, "h", "config.json"); }),
            "config.json: h is \"big\", expected a whole number");
  EXPECT_EQ(message_of([&] { json_get<int64_t>(json, "x", "config.json"); }),
            "config.json: x is 1.5, expected a whole number");
  EXPECT_EQ(message_of([&] { json_get<std::vector<int64_t>>(json, "v", "config.json"); }),
            "config.json: v[1] is \"2\", expected a whole number");
  EXPECT_EQ(message_of([&] { json_get<int64_t>(json, "u", "config.json"); }),
            "config.json: u is 18446744073709551615, expected a whole number below 2^63");
  EXPECT_EQ(message_of([&] { json_get<bool>(json, "q", "config.json"); }), "config.json: \"q\" is missing");
  EXPECT_EQ(message_of([&] { json_get<bool>(Json(3), "q", "config.json"); }),
            "config.json is 3, expected an object with \"q\"");
}

TEST(Json, NumbersBeyondTheTypeAreRefusedWithTheirRange) {
  const Json json = parse_json(
      R"({"huge": 1e308, "low": -1e308, "edge": 9.3e18, "u": 18446744073709551615, "big": 2147483648, "n": -1,
          "f": 7.0, "t": true, "l": -9223372036854775808})",
      "s.json");
  const auto message = [&](auto zero, const char* key) {
    return message_of([&] { json_get<decltype(zero)>(json, key, "s.json"); });
  };
  EXPECT_EQ(message(int64_t{}, "huge"), "s.json: huge is 1e+308, expected a whole number");
  EXPECT_EQ(message(int64_t{}, "low"), "s.json: low is -1e+308, expected a whole number");
  EXPECT_EQ(message(int64_t{}, "edge"), "s.json: edge is 9.3e+18, expected a whole number");
  EXPECT_EQ(message(int64_t{}, "t"), "s.json: t is true, expected a whole number");
  EXPECT_EQ(json_get<int64_t>(json, "l", "s.json"), INT64_MIN);
  EXPECT_EQ(json_get<uint64_t>(json, "u", "s.json"), UINT64_MAX);
  EXPECT_EQ(json_get<uint64_t>(json, "f", "s.json"), 7u);
  EXPECT_EQ(message(uint64_t{}, "n"), "s.json: n is -1, expected a whole number from 0 on");
  EXPECT_EQ(message(uint64_t{}, "huge"), "s.json: huge is 1e+308, expected a whole number");
  EXPECT_EQ(json_get<int>(json, "n", "s.json"), -1);
  EXPECT_EQ(message(int{}, "big"), "s.json: big is 2147483648, expected a whole number from -2147483648 to 2147483647");

  EXPECT_EQ(json_get_whole(json, "f", 7, 7, "s.json"), 7);
  EXPECT_EQ(message_of([&] { json_get_whole(json, "f", 0, 6, "s.json"); }),
            "s.json: f is 7.0, expected a whole number from 0 to 6");
  EXPECT_EQ(message_of([&] { json_get_whole(json, "huge", 0, 6, "s.json"); }),
            "s.json: huge is 1e+308, expected a whole number");
  EXPECT_EQ(whole_number(-3, -3, 5, "steps"), -3);
  for (const double bad : {1e308, -1e308, 0.5, 6.0, std::nan(""), HUGE_VAL}) {
    EXPECT_TRUE(
        message_of([&] { whole_number(bad, -3, 5, "steps"); }).ends_with("expected a whole number from -3 to 5"))
        << bad;
  }
}

TEST(Json, ValuesThatMayBeOfAnotherKind) {
  EXPECT_EQ(try_whole_number(Json(8.0)), 8);
  EXPECT_EQ(try_whole_number(Json(INT64_MIN)), INT64_MIN);
  for (const Json& other : {Json(1e308), Json(UINT64_MAX), Json(0.5), Json(true), Json("8"), Json()}) {
    EXPECT_FALSE(try_whole_number(other)) << dump_json(other);
  }
  const Json text = "é";
  ASSERT_NE(try_text(text), nullptr);
  EXPECT_EQ(*try_text(text), "é");
  EXPECT_EQ(try_text(Json(8)), nullptr);
}

TEST(Json, DumpIsCompactAndSurvivesInvalidUtf8) {
  EXPECT_EQ(dump_json(Json{{"a", 0.1}, {"b", {1, 2}}, {"c", "é"}}), R"({"a":0.1,"b":[1,2],"c":"é"})");
  EXPECT_EQ(dump_json(Json("a\xff")), "\"a\xef\xbf\xbd\"");
  OrderedJson ordered;
  ordered["z"] = 1;
  ordered["a"] = 2;
  EXPECT_EQ(dump_json(ordered), R"({"z":1,"a":2})");
  EXPECT_EQ(dump_json_pretty(ordered), "{\n  \"z\": 1,\n  \"a\": 2\n}\n");
}

}  // namespace
}  // namespace megalith
