// Signatures as in AWS's reference, settings as AWS's tools read them, and reads from a storage that fails. Whole runs,
// with moto's server as the judge, are in tests/cli/object_storage_test.py.
#include "storage/object_store.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "core/error.h"
#include "core/file.h"
#include "core/machine_error.h"
#include "storage/s3_signature.h"
#include "support/scripted_server.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

using std::chrono::milliseconds;
using test::ScriptedAnswer;
using test::ScriptedServer;

constexpr std::string_view kNoBody = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

// Source: Amazon S3 API Reference, "Signature Calculations for the Authorization Header: … Examples".
TEST(S3Signature, EqualsTheReferencesExamples) {
  S3Settings settings;
  settings.access_key = "AKIAIOSFODNN7EXAMPLE";
  settings.secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
  const auto signature = [&](S3Call call, std::string_view body) {
    call.host = "examplebucket.s3.amazonaws.com";
    call.headers["x-amz-date"] = "20130524T000000Z";
    call.headers["x-amz-content-sha256"] = body;
    const std::string text = s3_signature(call, settings, "20130524T000000Z", body);
    return text.substr(text.rfind('=') + 1);
  };
  const auto get = [](std::string path, std::map<std::string, std::string> query) {
    return S3Call{.method = "GET", .host = {}, .path = std::move(path), .query = std::move(query), .headers = {}};
  };
  S3Call ranged = get("/test.txt", {});
  ranged.headers["range"] = "bytes=0-9";
  EXPECT_EQ(signature(ranged, kNoBody),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  EXPECT_EQ(signature({.method = "PUT",
                       .host = {},
                       .path = "/test%24file.text",
                       .query = {},
                       .headers = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                                   {"x-amz-storage-class", "REDUCED_REDUNDANCY"}}},
                      "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  EXPECT_EQ(signature(get("/", {{"lifecycle", ""}}), kNoBody),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  EXPECT_EQ(signature(get("/", {{"prefix", "J"}, {"max-keys", "2"}}), kNoBody),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(S3Settings, ComeFromVariablesThenFromTheProfilesFiles) {
  const test::TemporaryFolder folder;
  write_file_atomic(folder.path() / "credentials",
                    "[default]\naws_access_key_id = A\naws_secret_access_key = B\n"
                    "[night]\naws_access_key_id=C\naws_secret_access_key=D\naws_session_token=E\n");
  write_file_atomic(folder.path() / "config",
                    "[profile night]\nregion = eu-west-3\ns3 =\n  addressing_style = path\n[default]\nregion = x\n");
  EnvironmentMap environment = {{"AWS_SHARED_CREDENTIALS_FILE", (folder.path() / "credentials").string()},
                                {"AWS_CONFIG_FILE", (folder.path() / "config").string()},
                                {"AWS_PROFILE", "night"}};
  const S3Settings night = read_s3_settings(environment);
  EXPECT_EQ(night.access_key + night.secret_key + night.session_token, "CDE");
  EXPECT_EQ(night.endpoint, "https://s3.eu-west-3.amazonaws.com");
  EXPECT_TRUE(night.is_path_style);
  environment["AWS_ACCESS_KEY_ID"] = "F";
  EXPECT_THROW(read_s3_settings(environment), UserError);  // without its secret
  environment["AWS_SECRET_ACCESS_KEY"] = "G";
  environment["AWS_REGION"] = "eu-north-1";
  const S3Settings given = read_s3_settings(environment);
  EXPECT_EQ(given.access_key + given.secret_key + given.session_token, "FG");
  EXPECT_EQ(given.region, "eu-north-1");
  environment["AWS_ENDPOINT_URL"] = "ftp://host";
  EXPECT_THROW(read_s3_settings(environment), UserError);
}

TEST(S3Url, NamesABucketAndAFolder) {
  const S3Url url = parse_object_url("s3://bucket/run/1/");
  EXPECT_EQ(url.text(), "s3://bucket/run/1");
  EXPECT_EQ(url.key("a"), "run/1/a");
  for (const char* wrong : {"s3://", "s3://b", "s3:///x", "s3://bucket/../x", "s3://bucket/a//b", "s3://buc ket/x"}) {
    EXPECT_THROW(parse_object_url(wrong), UserError) << wrong;
  }
}

class StorageFailures : public testing::Test {
 protected:
  ObjectStore store(const ScriptedServer& server) {
    ::setenv("no_proxy", "*", 1);
    S3Settings settings;
    settings.endpoint = server.url();
    settings.is_path_style = true;
    settings.access_key = "key";
    settings.secret_key = "not to be told";
    settings.patience = {.first_pause = milliseconds(1), .most_pause = milliseconds(2), .most_tries = 4};
    settings.patience.stall_timeout = stall_;
    return {settings, parse_object_url("s3://bucket/run"), log_};
  }

  milliseconds stall_{10'000};
  Logger log_{{.write = [](std::string_view) {}}};
};

TEST_F(StorageFailures, ACutBodyGoesOnFromItsLastByte) {
  stall_ = milliseconds(40);
  std::string ranges;
  const ScriptedServer server([&](const ScriptedAnswer& answer, int num_before) {
    const size_t at = answer.head().find("range: bytes=");
    const int64_t first_byte = std::stoll(answer.head().substr(at + 13));
    ranges += fmt::format("{} ", first_byte);
    if (num_before == 0) return answer.send_status(503);
    if (num_before == 1) return answer.stay_silent();
    const std::string rest = std::string("abcdefgh").substr(static_cast<size_t>(first_byte) - 2);
    answer.send(fmt::format("HTTP/1.1 206 Words\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", rest.size()));
    answer.send(num_before < 4 ? rest.substr(0, 3) : rest);
  });
  std::string out(8, '\0');
  const StoredObject object{.name = "x", .etag = "\"e\"", .size = 100, .modified = ""};
  store(server).read(object, 2, std::as_writable_bytes(std::span(out)));
  EXPECT_EQ(out, "abcdefgh");
  EXPECT_EQ(ranges, "2 2 2 5 8 ");
}

TEST_F(StorageFailures, TriesEndAndRefusalsAreNotTriedAgain) {
  const ScriptedServer storm([](const ScriptedAnswer& answer, int) { answer.send_status(500); });
  EXPECT_THROW(store(storm).list(), MachineError);
  EXPECT_EQ(storm.num_requests(), 4);
  const ScriptedServer denied([](const ScriptedAnswer& answer, int) {
    answer.send_status(403, "", "<Error><Code>SignatureDoesNotMatch</Code><Message>not to be told</Message></Error>");
  });
  try {
    store(denied).list();
    FAIL() << "403 was taken";
  } catch (const UserError& error) {
    EXPECT_NE(error.message().find("SignatureDoesNotMatch"), std::string::npos) << error.message();
    EXPECT_EQ(error.message().find("not to be told"), std::string::npos) << error.message();
  }
  EXPECT_EQ(denied.num_requests(), 1);
}

}  // namespace
}  // namespace megalith
