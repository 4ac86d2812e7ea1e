// Hub names, the cache's layout, locks, hashes and the choice of files: all that needs no server. The rest is in
// tests/cli/fetch_test.py.
#include "hub/hub.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "core/sha256.h"
#include "hub/urls.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {
namespace fs = std::filesystem;

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

template <typename Hash>
std::string hash_of(const std::string& text, size_t piece) {
  Hash hash;
  for (size_t begin = 0; begin < text.size(); begin += piece) {
    hash.update(std::string_view(text).substr(begin, piece));
  }
  return hash.hex();
}

std::string hub_message(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

// Examples of FIPS 180-2, appendices A and B.
TEST(Sha256, GivesThePublishedSums) {
  const std::string million(1'000'000, 'a'), two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  for (const size_t piece : {1, 55, 63, 64, 65, 4096}) {
    EXPECT_EQ(hash_of<Sha256>("abc", piece), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(hash_of<Sha256>(two_blocks, piece), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_EQ(hash_of<Sha256>(million, piece), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    EXPECT_EQ(hash_of<Sha1>("abc", piece), "a9993e364706816aba3e25717850c26c9cd0d89d");
    EXPECT_EQ(hash_of<Sha1>(two_blocks, piece), "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
    EXPECT_EQ(hash_of<Sha1>(million, piece), "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
  }
  EXPECT_EQ(Sha256().hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha1().hex(), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
}

TEST(HubNames, AreToldFromPaths) {
  const auto name = parse_hub_name("meta-llama/Llama-3.1-8B@refs/pr/3", HubRepoType::kModel);
  ASSERT_TRUE(name);
  EXPECT_EQ(name->repo, "meta-llama/Llama-3.1-8B");
  EXPECT_EQ(name->revision, "refs/pr/3");
  EXPECT_EQ(name->text(), "meta-llama/Llama-3.1-8B@refs/pr/3");
  EXPECT_EQ(parse_hub_name("a/b", HubRepoType::kModel)->text(), "a/b");
  for (const char* path : {"",         "model",
                           "/a/b",     "./a/b",
                           "../a",     "~/a",
                           "a/b/c",    "a/",
                           "/a",       "a//b",
                           "a/b@",     "a/b@..",
                           "a/b@/x",   "a/b@x@y",
                           "a/.b",     "-a/b",
                           "a/b--c",   "a/b..c",
                           "a/b.git",  "a b/c",
                           "a/b\n",    "data/wiki.jsonl",
                           "s3://a/b", "a/tokenizer.json"}) {
    EXPECT_FALSE(parse_hub_name(path, HubRepoType::kModel)) << path;
  }
  const auto data = parse_hub_name("org/texts/part/wiki@v1", HubRepoType::kDataset);
  ASSERT_TRUE(data);
  EXPECT_EQ(data->inner, "part/wiki");
  EXPECT_EQ(data->revision, "v1");
  EXPECT_FALSE(parse_hub_name("org/texts/../x", HubRepoType::kDataset));
}

TEST(HubNames, ComeBackFromAPathIntoAnotherMachinesCache) {
  const std::string base = fmt::format("/home/x/hub/models--org--name/snapshots/{}", kCommit);
  const auto name = parse_hub_name(base, HubRepoType::kDataset);
  ASSERT_TRUE(name);
  EXPECT_EQ(name->type, HubRepoType::kModel);
  EXPECT_EQ(name->text(), fmt::format("org/name@{}", kCommit));
  EXPECT_EQ(parse_hub_name(base + "/sub/tokenizer.model", HubRepoType::kModel)->inner, "sub/tokenizer.model");
  EXPECT_FALSE(parse_hub_name(base + "/../x", HubRepoType::kModel));
  EXPECT_FALSE(parse_hub_name("/x/models--org--name/snapshots/main", HubRepoType::kModel));
}

TEST(HubNames, UrlsAreRefusedWithWhatToDo) {
  const std::pair<const char*, const char*> cases[] = {
      {"s3://bucket/key", "aws s3 sync s3://bucket/key DIR"},
      {"gs://bucket/key", "gcloud storage rsync -r gs://bucket/key DIR"},
      {"az://container/key", "azcopy"},
      {"https://example.com/x.json", "curl -LO"},
      {"https://huggingface.co/org/name/tree/v2", "org/name@v2"},
      {"https://huggingface.co/datasets/org/name", "write the repository's name: org/name"},
      {"hf://org/name/file", "write the repository's name: org/name"},
      {"file:///data/x", "write only the path: /data/x"},
      {"msc://profile/x", "copy what it names to this machine"},
  };
  for (const auto& [url, advice] : cases) {
    const auto error = refuse_url("--load_hf", url);
    ASSERT_TRUE(error) << url;
    EXPECT_NE(std::string(error->what()).find(advice), std::string::npos) << error->what();
    EXPECT_TRUE(error->message().starts_with("--load_hf ")) << error->message();
  }
  EXPECT_FALSE(refuse_url("--load_hf", "a/b:c"));
  EXPECT_FALSE(refuse_url("--load_hf", "/data/http://x"));
  const std::string text = refuse_url("--load", "https://user:secret@example.com/x?sig=secret#secret")->what();
  EXPECT_EQ(text.find("secret"), std::string::npos) << text;
}

TEST(HubNames, PatternsAreThoseOfFnmatch) {
  EXPECT_TRUE(matches_glob("original/params.json", "*.json"));
  EXPECT_TRUE(matches_glob("original/params.json", "original/"));
  EXPECT_TRUE(matches_glob("model-00001.bin", "model-0000[1-3].???"));
  EXPECT_TRUE(matches_glob("a]b", "a[]]b"));
  EXPECT_TRUE(matches_glob("a[b", "a[b"));
  EXPECT_FALSE(matches_glob("model-00004.bin", "model-0000[1-3].bin"));
  EXPECT_TRUE(matches_glob("model-00004.bin", "model-0000[!1-3].bin"));
  EXPECT_FALSE(matches_glob("a.json.gz", "*.json"));
  EXPECT_FALSE(matches_glob("ajson", "*.json"));
  EXPECT_TRUE(matches_glob("", "*"));
  EXPECT_FALSE(matches_glob("", "?"));
  // Quadratic at worst, not exponential.
  EXPECT_FALSE(matches_glob(std::string(2000, 'a'), "*a*a*a*a*a*a*a*a*a*a*b"));
  EXPECT_TRUE(is_included("x.bin", {}, {}));
  EXPECT_FALSE(is_included("x.bin", {"*.bin"}, {"x*"}));
}

TEST(Http, OriginsAndShownAddressesHoldNoSecrets) {
  EXPECT_EQ(url_origin("HTTPS://Hub.co/x"), "https://hub.co:443");
  EXPECT_EQ(url_origin("http://u:p@hub.co?x"), "http://hub.co:80");
  EXPECT_EQ(url_origin("http://hub.co:80@evil.com/"), "http://evil.com:80");
  EXPECT_EQ(url_origin("http://[::1]:8080/x"), "http://[::1]:8080");
  EXPECT_EQ(url_origin("http://[::1]"), "http://[::1]:80");
  EXPECT_EQ(url_origin("ftp://hub.co"), "");
  EXPECT_EQ(url_origin("hub.co"), "");
  EXPECT_EQ(shown_url("https://u:p@hub.co/a@b?sig=1#f"), "https://hub.co/a@b");
  EXPECT_EQ(percent_encoded("a b/c#%ü", "/"), "a%20b/c%23%25%C3%BC");
}

TEST(HubSettings, FollowHuggingFacesVariables) {
  const test::TemporaryFolder folder;
  const std::string home = folder.path().string();
  EnvironmentMap environment = {{"HOME", home}};
  HubSettings settings = read_hub_settings(environment);
  EXPECT_EQ(settings.cache, folder.path() / ".cache/huggingface/hub");
  EXPECT_EQ(settings.endpoint, "https://huggingface.co");
  EXPECT_TRUE(settings.token.empty() && settings.token_source.empty() && !settings.is_offline);

  environment["XDG_CACHE_HOME"] = home + "/xdg";
  EXPECT_EQ(read_hub_settings(environment).cache, folder.path() / "xdg/huggingface/hub");
  environment["HF_HOME"] = "~/$PART/hf";
  environment["PART"] = "part";
  EXPECT_EQ(read_hub_settings(environment).cache, folder.path() / "part/hf/hub");
  EXPECT_EQ(read_hub_settings(environment).token_path, folder.path() / "part/hf/token");
  environment["HUGGINGFACE_HUB_CACHE"] = "/old";
  EXPECT_EQ(read_hub_settings(environment).cache, "/old");
  environment["HF_HUB_CACHE"] = "/new";
  EXPECT_EQ(read_hub_settings(environment).cache, "/new");

  folder.write("token", " hf_abc\n");
  environment["HF_TOKEN_PATH"] = "${HOME}/token";
  settings = read_hub_settings(environment);
  EXPECT_EQ(settings.token, "hf_abc");
  EXPECT_EQ(settings.token_source, (folder.path() / "token").string());
  environment["HF_TOKEN"] = "hf_def";
  EXPECT_EQ(read_hub_settings(environment).token, "hf_def");
  environment["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1";
  EXPECT_EQ(read_hub_settings(environment).token, "");
  environment.erase("HF_HUB_DISABLE_IMPLICIT_TOKEN");
  environment["HF_ENDPOINT"] = "https://user:secret@mirror.example/";
  EXPECT_EQ(read_hub_settings(environment).shown_endpoint(), "https://mirror.example");
  environment["TRANSFORMERS_OFFLINE"] = "yes";
  EXPECT_TRUE(read_hub_settings(environment).is_offline);
  environment["HF_HUB_OFFLINE"] = "0";
  EXPECT_FALSE(read_hub_settings(environment).is_offline);

  environment["HF_HUB_DOWNLOAD_TIMEOUT"] = "soon";
  EXPECT_NE(hub_message([&] { read_hub_settings(environment); }).find("HF_HUB_DOWNLOAD_TIMEOUT"), std::string::npos);
  environment["HF_HUB_DOWNLOAD_TIMEOUT"] = "5";
  environment["HF_TOKEN"] = "hf_se\ncret";
  const std::string message = hub_message([&] { read_hub_settings(environment); });
  EXPECT_NE(message.find("HF_TOKEN"), std::string::npos);
  EXPECT_EQ(message.find("cret\n"), std::string::npos) << message;
}

class HubCacheTest : public testing::Test {
 protected:
  HubCacheTest() { settings_.cache = folder_.path() / "hub"; }

  // A file of a snapshot, as a link to its blob.
  void put(const HubName& name, const std::string& file, const std::string& content) {
    const std::string hash = hash_of<Sha256>(content, 64);
    folder_.write(hub_blob(settings_, name, hash).lexically_relative(folder_.path()).string(), content);
    write_hub_ref(settings_, name, kCommit);
    link_hub_blob(settings_, name, kCommit, file, hash);
  }
  std::string resolve(const std::string& value, HubNeed need) {
    const EnvironmentMap off_line = {{"HF_HUB_CACHE", settings_.cache.string()}, {"HF_HUB_OFFLINE", "1"}};
    return resolve_hub_path("option", value, need, off_line, {}, log_).string();
  }
  std::string message(const std::string& value, HubNeed need) {
    return hub_message([&] { resolve(value, need); });
  }

  test::TemporaryFolder folder_;
  HubSettings settings_;
  Logger log_{{.level = LogLevel::kSilent}};
  HubName model_{.type = HubRepoType::kModel, .repo = "org/name", .revision = "main", .inner = ""};
  HubName data_{.type = HubRepoType::kDataset, .repo = "org/name", .revision = "main", .inner = ""};
};

TEST_F(HubCacheTest, LinksAreRelativeAndTheRefNamesTheCommit) {
  put(model_, "sub/config.json", "{}");
  const fs::path root = settings_.cache / "models--org--name";
  EXPECT_EQ(read_file(root / "refs/main"), kCommit);
  EXPECT_EQ(fs::read_symlink(root / "snapshots" / kCommit / "sub/config.json"),
            fs::path("../../../blobs") / hash_of<Sha256>("{}", 64));
  EXPECT_EQ(cached_snapshot(settings_, model_), root / "snapshots" / kCommit);
  EXPECT_FALSE(cached_snapshot(settings_, data_));
  // Another content under the same name replaces the link.
  put(model_, "sub/config.json", "{\"a\": 1}");
  EXPECT_EQ(read_file(root / "snapshots" / kCommit / "sub/config.json"), "{\"a\": 1}");
}

TEST_F(HubCacheTest, ASnapshotThatLacksSomethingIsNotEnough) {
  const std::string folder = (hub_snapshot(settings_, model_, kCommit)).string();
  put(model_, "config.json", "{}");
  EXPECT_EQ(resolve("org/name", HubNeed::kModelConfig), folder);
  EXPECT_NE(message("org/name", HubNeed::kTokenizer).find("lacks some of its files"), std::string::npos);
  put(model_, "vocab.json", "{}");
  EXPECT_NE(message("org/name", HubNeed::kTokenizer), "no error");
  put(model_, "merges.txt", "");
  EXPECT_EQ(resolve("org/name", HubNeed::kTokenizer), folder);
  put(model_, "model.safetensors.index.json", R"({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}})");
  put(model_, "m-1.safetensors", "1");
  EXPECT_NE(message("org/name", HubNeed::kModel), "no error");
  put(model_, "m-2.safetensors", "2");
  EXPECT_EQ(resolve("org/name", HubNeed::kModel), folder);
  EXPECT_EQ(resolve(fmt::format("org/name@{}", kCommit), HubNeed::kModel), folder);
  // A link whose blob is gone is no file.
  fs::remove(hub_blob(settings_, model_, hash_of<Sha256>("2", 64)));
  EXPECT_NE(message("org/name", HubNeed::kModel), "no error");
}

TEST_F(HubCacheTest, DataIsAPrefixOfARepository) {
  const std::string folder = hub_snapshot(settings_, data_, kCommit).string();
  for (const char* file : {"a/wiki.bin", "a/wiki.idx", "lonely.idx"}) put(data_, file, file);
  EXPECT_EQ(resolve("org/name", HubNeed::kTokenData), folder + "/a/wiki");
  EXPECT_EQ(resolve("org/name/a/wiki", HubNeed::kTokenData), folder + "/a/wiki");
  EXPECT_EQ(resolve("org/name/a/wiki.bin", HubNeed::kTokenData), folder + "/a/wiki");
  EXPECT_NE(message("org/name/lonely", HubNeed::kTokenData), "no error");
  put(data_, "b.bin", "1");
  put(data_, "b.idx", "2");
  EXPECT_NE(message("org/name", HubNeed::kTokenData), "no error");
  EXPECT_EQ(resolve("org/name/b", HubNeed::kTokenData), folder + "/b");
  EXPECT_EQ(resolve("org/name/lonely.idx", HubNeed::kTextFile), folder + "/lonely.idx");
}

TEST_F(HubCacheTest, APathThatExistsComesFirstAndWhatIsNoNameStays) {
  put(model_, "tokenizer.json", "{}");
  const fs::path before = fs::current_path();
  fs::current_path(folder_.path());
  folder_.write("org/name/other", "");
  EXPECT_EQ(resolve("org/name", HubNeed::kTokenizer), "org/name");
  fs::current_path(before);
  for (const char* value : {"", "nowhere", "/nowhere/x", "a/b/c", "a/tokenizer.json"}) {
    EXPECT_EQ(resolve(value, HubNeed::kTokenizer), value);
  }
  EXPECT_NE(message("s3://a/b", HubNeed::kTokenizer).find("aws s3"), std::string::npos);
  const std::string absent = message("other/model", HubNeed::kModel);
  for (const char* part : {"option other/model", "HF_HUB_OFFLINE", "megalith fetch other/model", "models--other--model",
                           "'other/model' does not exist here"}) {
    EXPECT_NE(absent.find(part), std::string::npos) << part << " in " << absent;
  }
}

TEST_F(HubCacheTest, AnIndexThatLeadsOutOfItsFolderIsRefused) {
  put(model_, "config.json", "{}");
  put(model_, "model.safetensors.index.json", R"({"weight_map": {"a": "../../x"}})");
  EXPECT_NE(message("org/name", HubNeed::kModel).find("the file of a is no file name"), std::string::npos);
}

TEST_F(HubCacheTest, ALockIsHeldByOneAtATime) {
  std::atomic<int> holders{0}, most{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 3; ++turn) {
        const HubLock lock(settings_, model_, "x", [](std::chrono::seconds) {});
        most = std::max<int>(most, ++holders);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        --holders;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most, 1);
  EXPECT_TRUE(fs::exists(settings_.cache / ".locks/models--org--name/x.lock"));
}

}  // namespace
}  // namespace megalith
