// Versions of the libraries that ranks talk over.
#include "launch/back_ends.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

TEST(BackEnds, NcclsCodeReadsAsItsVersion) {
  EXPECT_EQ(nccl_version_text(22703), "2.27.3");
  EXPECT_EQ(nccl_version_text(20900), "2.9.0");
  EXPECT_EQ(nccl_version_text(2804), "2.8.4");  // before 2.9 three digits followed the major number
}

}  // namespace
}  // namespace megalith
