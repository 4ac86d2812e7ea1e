// The secret of the store: RFC 4231's vectors, and files that hold one.
#include "launch/store_secret.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "core/error.h"
#include "core/file.h"
#include "core/sha256.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

TEST(StoreSecret, HmacIsThatOfRfc4231) {
  EXPECT_EQ(hmac_sha256(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac_sha256("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

std::string refusal_of(const std::filesystem::path& file) {
  try {
    return "accepted: " + read_store_secret(file);
  } catch (const UserError& error) {
    return error.what();
  }
}

TEST(StoreSecret, OnlyAFileOfItsOwnerWithEnoughInItIsTaken) {
  const test::TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "secret";
  EXPECT_NE(refusal_of(file).find("secret"), std::string::npos);
  write_file_atomic(file, " 0123456789abcdef \n");
  ASSERT_EQ(::chmod(file.c_str(), 0644), 0);
  EXPECT_NE(refusal_of(file).find("may be read or written by other users (mode 644)"), std::string::npos);
  ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
  EXPECT_EQ(refusal_of(file), "accepted: 0123456789abcdef");
  for (const char* text : {"", "\n", "0123456789abcde\n"}) {
    write_file_atomic(file, text);
    ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
    EXPECT_NE(refusal_of(file).find("and a secret has at least 16"), std::string::npos) << text;
  }
}

TEST(StoreSecret, AMadeFileIsItsOwnersAndGoesAgain) {
  std::filesystem::path path;
  {
    const StoreSecretFile first, second;
    path = first.path();
    EXPECT_EQ(read_store_secret(path).size(), 64U);
    EXPECT_NE(read_store_secret(path), read_store_secret(second.path()));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace megalith
