// Tables of other trainers' words: how they are read, and that a wrong row is named.
#include "config/dialect.h"

#include <gtest/gtest.h>

#include <array>

namespace megalith {
namespace {

constexpr std::array<std::string_view, 3> kColumns = {"kind", "text", "names"};

std::string error_of(std::string_view text) {
  try {
    for (const DialectRow& row : read_dialect({"sample", text}, kColumns)) {
      row.choose<bool>(row.cells[0], {{"on", true}, {"off", false}});
    }
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

TEST(Dialect, RowsMayGoOnInIndentedLines) {
  const auto rows =
      read_dialect({"sample", "# words\nkind | text | names\n\non | a; b\n  | x=1|2\n    y\noff"}, kColumns);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].where, "sample.table:4");
  EXPECT_EQ(rows[0].cells, (std::vector<std::string>{"on", "a; b", "x=1|2 y"}));
  EXPECT_EQ(rows[1].cells, (std::vector<std::string>{"off", "", ""}));
  EXPECT_EQ(read_dialect({"sample", "kind | text | names\non | | x"}, kColumns)[0].cells[2], "x");
}

TEST(Dialect, AWrongRowIsNamed) {
  EXPECT_NE(error_of("kind | text | names\non | a | b | c\n").find("sample.table:2: 4 cells"), std::string::npos);
  EXPECT_NE(error_of("kind | text | names\nno | a\n").find("sample.table:2: 'no' is no word"), std::string::npos);
  EXPECT_NE(error_of("  on\n").find("sample.table:1: no row"), std::string::npos);
  EXPECT_NE(error_of("kind | names\n").find("sample.table does not begin"), std::string::npos);
  EXPECT_THROW(dialect_rows("nobody's", {"names"}), InternalError);
}

}  // namespace
}  // namespace megalith
