// Base64 by the examples of RFC 4648, section 10.
#include "core/base64.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

std::string encoded(std::string_view bytes) {
  std::string text = "x";
  append_base64(text, bytes);
  return text;
}

TEST(Base64, BytesAreWrittenBehindTheText) {
  EXPECT_EQ(encoded(""), "x");
  EXPECT_EQ(encoded("f"), "xZg==");
  EXPECT_EQ(encoded("fo"), "xZm8=");
  EXPECT_EQ(encoded("foo"), "xZm9v");
  EXPECT_EQ(encoded("foob"), "xZm9vYg==");
  EXPECT_EQ(encoded("foobar"), "xZm9vYmFy");
  EXPECT_EQ(encoded("\xff\xfe\xfd"), "x//79");
}

}  // namespace
}  // namespace megalith
