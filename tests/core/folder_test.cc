// Queries of folders that find nothing instead of failing.
#include "core/folder.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temporary_folder.h"

namespace megalith {
namespace {

TEST(Folder, NamesComeSortedAndWhatCannotBeReadHasNone) {
  const test::TemporaryFolder place;
  for (const char* name : {"b", ".hidden", "a"}) std::ofstream(place.path() / name) << "x";
  EXPECT_EQ(names_in(place.path()), (std::vector<std::string>{".hidden", "a", "b"}));
  EXPECT_TRUE(names_in(place.path() / "missing").empty());
  EXPECT_TRUE(names_in(place.path() / "a").empty()) << "a file";
}

TEST(Folder, ALinkThatLeadsNowhereIsNotThere) {
  const test::TemporaryFolder place;
  std::ofstream(place.path() / "target") << "x";
  std::filesystem::create_symlink("target", place.path() / "link");
  EXPECT_TRUE(is_there(place.path() / "link"));
  std::filesystem::remove(place.path() / "target");
  EXPECT_FALSE(is_there(place.path() / "link"));
  EXPECT_FALSE(is_there(place.path() / "link" / "below"));
}

}  // namespace
}  // namespace megalith
