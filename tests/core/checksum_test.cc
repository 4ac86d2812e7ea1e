// XXH3 sums against xxHash's published values for the empty input, and streaming against one call.
#include "core/checksum.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

TEST(Checksum, EmptyInputHasThePublishedValues) {
  EXPECT_EQ(checksum64(""), 0x2d06800538d394c2u);
  EXPECT_EQ(checksum128("").hex(), "99aa06d3014798d86001c324468d497f");
}

TEST(Checksum, StreamingEqualsOneCallForAnyPieces) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 7);
  for (size_t piece : {1, 3, 64, 257, 4999}) {
    StreamingChecksum sum;
    for (size_t i = 0; i < text.size(); i += piece) sum.update(std::string_view(text).substr(i, piece));
    EXPECT_EQ(sum.sum64(), checksum64(text)) << piece;
    EXPECT_EQ(sum.sum128(), checksum128(text)) << piece;
  }
}

TEST(Checksum, OneFlippedBitShows) {
  std::string text(1000, 'a');
  const Checksum128 before = checksum128(text);
  text[500] = static_cast<char>(text[500] ^ 1);
  EXPECT_NE(checksum128(text), before);
}

TEST(Checksum, HexIsReadBack) {
  const Checksum128 sum = checksum128("abc");
  EXPECT_EQ(parse_checksum(sum.hex()), sum);
  EXPECT_FALSE(parse_checksum("abc"));
  EXPECT_FALSE(parse_checksum(std::string(31, '0') + "g"));
  EXPECT_FALSE(parse_checksum(std::string(15, '0') + "g" + std::string(16, '0')));
}

}  // namespace
}  // namespace megalith
