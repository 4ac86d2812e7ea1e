// A hub that fails in every way that servers do: tries, pauses and patience are bounded and told, and nothing wrong
// gets into the cache. Times are those of tests: a failure takes milliseconds.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "core/sha256.h"
#include "hub/client.h"
#include "hub/retry.h"
#include "support/scripted_server.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {
namespace fs = std::filesystem;
using std::chrono::milliseconds;
using test::ScriptedAnswer;
using test::ScriptedServer;

constexpr const char* kHubCommit = "0123456789abcdef0123456789abcdef01234567";

std::string hub_list(std::string_view siblings = "[]") {
  return fmt::format(R"({{"sha": "{}", "siblings": {}}})", kHubCommit, siblings);
}

// The bytes from where the client has some, as a store gives them.
void send_rest(const ScriptedAnswer& answer, const std::string& content, size_t num_bytes = std::string::npos) {
  const auto begin = static_cast<size_t>(answer.first_byte());
  const std::string range =
      begin == 0 ? "" : fmt::format("Content-Range: bytes {}-{}/{}\r\n", begin, content.size() - 1, content.size());
  answer.send(fmt::format("HTTP/1.1 {} Words\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n",
                          begin == 0 ? 200 : 206, content.size() - begin, range));
  answer.send(std::string_view(content).substr(begin, num_bytes));
}

class HubFailures : public testing::Test {
 protected:
  HubFailures() {
    ::setenv("no_proxy", "*", 1);
    settings_.cache = folder_.path() / "hub";
    settings_.patience.first_pause = milliseconds(1);
    Sha256 sha;
    sha.update(std::string_view(content_));
    file_ = {.name = "model.safetensors", .size = static_cast<int64_t>(content_.size()), .hash = sha.hex()};
    blob_ = folder_.path() / "blob";
    incomplete_ = folder_.path() / "blob.incomplete";
  }

  // Silence and drops in this test are taken for a stall after a moment. Not so in other tests: a busy machine stalls,
  // too.
  void stall_soon() { settings_.patience.stall_timeout = milliseconds(40); }

  // The error's text after "HubError: " or "UserError: "; "" without one.
  template <typename Action>
  std::string error_of(const ScriptedServer& server, const Action& action) {
    settings_.endpoint = server.url();
    HubClient client(settings_, {.type = HubRepoType::kModel, .repo = "org/name", .revision = "main", .inner = ""},
                     "fetch org/name", log_);
    try {
      action(client);
    } catch (const HubError& error) {
      return fmt::format("HubError: {}", error.what());
    } catch (const UserError& error) {
      return fmt::format("UserError: {}", error.what());
    }
    return "";
  }
  std::string list_error(const ScriptedServer& server) {
    return error_of(server, [](HubClient& client) { client.list(); });
  }
  std::string download_error(const ScriptedServer& server) {
    return error_of(server, [&](HubClient& client) {
      client.download(
          kHubCommit, file_, blob_, [](int64_t) {}, stop_);
    });
  }

  // Counts the further tries that the log tells of, and expects the reason with each.
  int num_told(const std::string& reason) {
    int count = 0;
    for (const std::string& line : lines_) {
      if (line.find(" follows in ") == std::string::npos) continue;
      EXPECT_NE(line.find(reason), std::string::npos) << line;
      EXPECT_NE(line.find("fetch org/name"), std::string::npos) << line;
      ++count;
    }
    return count;
  }

  void expect_part(const std::string& text, const std::string& part) const {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' in: " << text;
  }

  test::TemporaryFolder folder_;
  HubSettings settings_;
  std::string content_ = std::string(300'000, 'a') + std::string(300'000, 'b');
  HubFile file_;
  fs::path blob_, incomplete_;
  std::atomic<bool> stop_{false};
  std::vector<std::string> lines_;
  std::mutex mutex_;
  Logger log_{{.write = [this](std::string_view line) {
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(line);
  }}};
};

TEST_F(HubFailures, AnAnswerIsAskedForThreeTimesAndEveryReasonIsTold) {
  const std::pair<const char*, ScriptedServer::Script> cases[] = {
      {"answers 500", [](const ScriptedAnswer& answer, int) { answer.send_status(500); }},
      {"answers 429", [](const ScriptedAnswer& answer, int) { answer.send_status(429); }},
      {"answers 503", [](const ScriptedAnswer& answer, int) { answer.send_status(503, "Retry-After: 0\r\n"); }},
      // libcurl's words for these two are not the same in every version.
      {"/api/models/org/name/revision/main: ",
       [](const ScriptedAnswer& answer, int) { answer.send("HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{\"sha"); }},
      {"/api/models/org/name/revision/main: ", [](const ScriptedAnswer&, int) {}},
  };
  for (const auto& [reason, script] : cases) {
    lines_.clear();
    const ScriptedServer server(script);
    const std::string error = list_error(server);
    EXPECT_TRUE(error.starts_with("HubError: ")) << error;
    if (std::string_view(reason).starts_with("answers")) {
      expect_part(error, reason + std::string_view("answers ").size());
    } else {
      expect_part(error, reason);
    }
    expect_part(error, "given up after 3 tries");
    EXPECT_EQ(server.num_requests(), 3) << reason;
    EXPECT_EQ(num_told(reason), 2) << reason;
  }
}

TEST_F(HubFailures, AnAnswerThatIsGoodAtLastIsTaken) {
  const ScriptedServer server([](const ScriptedAnswer& answer, int num_before) {
    answer.send_status(num_before < 2 ? 500 : 200, "", hub_list(R"([{"rfilename": "a", "size": 3}])"));
  });
  settings_.endpoint = server.url();
  HubClient client(settings_, {.type = HubRepoType::kModel, .repo = "org/name", .revision = "main", .inner = ""}, "x",
                   log_);
  EXPECT_EQ(client.list().files.at(0).size, 3);
}

TEST_F(HubFailures, SilenceAndDropsAreStalls) {
  stall_soon();
  const std::pair<const char*, ScriptedServer::Script> cases[] = {
      {"silent from the start", [](const ScriptedAnswer& answer, int) { answer.stay_silent(); }},
      {"silent in the middle",
       [](const ScriptedAnswer& answer, int) {
         answer.send("HTTP/1.1 200 OK\r\nContent-Length: 600000\r\n\r\naaa");
         answer.stay_silent();
       }},
      {"a byte at a time",
       [](const ScriptedAnswer& answer, int) {
         answer.send("HTTP/1.1 200 OK\r\nContent-Length: 600000\r\n\r\n");
         answer.drip(milliseconds(4));
       }},
      {"a header at a time",
       [](const ScriptedAnswer& answer, int) {
         answer.send("HTTP/1.1 200 OK\r\n");
         answer.drip(milliseconds(4));
       }},
  };
  for (const auto& [name, script] : cases) {
    lines_.clear();
    const ScriptedServer of_list(script), of_file(script);
    const std::string reason = "fewer than 1024 bytes a second arrived for 0.04 s";
    expect_part(list_error(of_list), reason);
    EXPECT_EQ(of_list.num_requests(), 3) << name;
    const std::string error = download_error(of_file);
    EXPECT_TRUE(error.starts_with("HubError: ")) << error;
    expect_part(error, reason);
    EXPECT_EQ(of_file.num_requests(), 5) << name;
    EXPECT_EQ(num_told(reason), 2 + 4) << name;
    EXPECT_FALSE(fs::exists(blob_));
    fs::remove(incomplete_);
  }
}

TEST_F(HubFailures, ThePatienceEndsATryThatStallsLonger) {
  settings_.patience.total = milliseconds(400);  // long enough to ask once on a busy machine
  settings_.patience.stall_timeout = std::chrono::minutes(10);
  for (const bool is_list : {true, false}) {
    const ScriptedServer server([](const ScriptedAnswer& answer, int) { answer.stay_silent(); });
    const Stopwatch watch;
    const std::string error = is_list ? list_error(server) : download_error(server);
    EXPECT_LT(watch.elapsed_s(), 300);
    expect_part(error, "not complete in time");
    expect_part(error, "hub_timeout_minutes");
    EXPECT_EQ(server.num_requests(), 1);
  }
}

TEST_F(HubFailures, APauseThatIsAskedForIsKeptWithinThePatience) {
  const ScriptedServer server(
      [](const ScriptedAnswer& answer, int) { answer.send_status(429, "Retry-After: 3600\r\n"); });
  for (const std::string& error : {list_error(server), download_error(server)}) {
    EXPECT_TRUE(error.starts_with("HubError: ")) << error;
    expect_part(error, "429");
    expect_part(error, "asked for in 1 h");
    expect_part(error, "hub_timeout_minutes");
  }
  EXPECT_EQ(server.num_requests(), 2);

  // Within it, the pause is the one that was asked for. `stop` cuts it short here.
  const std::atomic<bool> stop{true};
  HttpResponse busy;
  busy.headers["retry-after"] = "7";
  HubRetries retries(settings_.patience, "fetch org/name", 3, log_);
  lines_.clear();
  EXPECT_EQ(retries.pause_or_end("busy", &busy, stop), "");
  EXPECT_EQ(retries.pause_or_end("dead", nullptr, stop), "");
  ASSERT_EQ(lines_.size(), 2u);
  expect_part(lines_[0], "fetch org/name: busy; try 2 of 3 follows in 7.00 s");
  expect_part(lines_[1], "dead; try 3 of 3 follows in");
  expect_part(retries.pause_or_end("dead", nullptr, stop), "after 3 tries");
}

TEST_F(HubFailures, PausesAreReadFromSecondsDatesAndRateLimits) {
  // 2026-10-21 07:28:00 UTC
  const auto now = std::chrono::system_clock::from_time_t(1792567680);
  const auto asked = [&](const char* name, const char* value) {
    HttpResponse response;
    response.headers[name] = value;
    const auto pause = asked_pause(response, now);
    return pause ? pause->count() : -1;
  };
  EXPECT_EQ(asked("retry-after", "120"), 120'000);
  EXPECT_EQ(asked("retry-after", "Wed, 21 Oct 2026 07:28:09 GMT"), 9'000);
  EXPECT_EQ(asked("retry-after", "Wed, 21 Oct 2026 07:27:00 GMT"), 0);
  EXPECT_EQ(asked("retry-after", "-5"), 0);
  EXPECT_GT(asked("retry-after", "9223372036854775807"), int64_t{1'000'000'000});
  EXPECT_EQ(asked("ratelimit", "\"api\";r=0;t=55"), 55'000);
  EXPECT_EQ(asked("ratelimit", "\"api\";r=0;t=55, \"pages\";r=1;t=9"), 55'000);
  for (const char* text : {"", "soon", "Wed, 21 Foo 2026 07:28:09 GMT", "Wed"}) {
    EXPECT_EQ(asked("retry-after", text), -1);
  }
  for (const char* text : {"", "\"api\";r=0", "\"api\";t=x"}) EXPECT_EQ(asked("ratelimit", text), -1);
}

TEST_F(HubFailures, RedirectsThatLeadNowhereAreRefusedAtOnce) {
  const std::tuple<const char*, const char*, int> cases[] = {
      {"Location: file:///etc/passwd\r\n", "file:///etc/passwd, which is neither http nor https", 1},
      {"Location: ftp://127.0.0.1/x\r\n", "neither http nor https", 1},
      {"Location: /again\r\n", "redirects more than 10 times", 11},
      {"", "does not say where to go", 1},
  };
  for (const auto& [header, reason, num_requests] : cases) {
    const ScriptedServer server(
        [&, text = header](const ScriptedAnswer& answer, int) { answer.send_status(302, text, "gone"); });
    for (const std::string& error : {list_error(server), download_error(server)}) {
      EXPECT_TRUE(error.starts_with("HubError: ")) << error;
      expect_part(error, reason);
    }
    EXPECT_EQ(server.num_requests(), 2 * num_requests);
    EXPECT_FALSE(fs::exists(blob_));
  }
}

TEST_F(HubFailures, ARedirectToAClosedPortIsTriedAgain) {
  const ScriptedServer server(
      [](const ScriptedAnswer& answer, int) { answer.send_status(302, "Location: http://127.0.0.1:1/x\r\n"); });
  expect_part(list_error(server), "127.0.0.1:1/x");
  expect_part(download_error(server), "127.0.0.1:1/x");
  EXPECT_EQ(server.num_requests(), 3 + 5);
}

TEST_F(HubFailures, AListWithoutEndIsNotRead) {
  settings_.patience.most_list_bytes = 1 << 20;
  std::atomic<int64_t> num_sent{0};
  const ScriptedServer server([&](const ScriptedAnswer& answer, int) {
    answer.send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"sha\": \"");
    const std::string piece(1 << 16, 'a');
    for (int i = 0; i < 1024 && answer.send(piece); ++i) num_sent += 1 << 16;
  });
  const std::string error = list_error(server);
  EXPECT_TRUE(error.starts_with("HubError: ")) << error;
  expect_part(error, "longer than 1.00 MiB");
  EXPECT_EQ(server.num_requests(), 1);
  // The limit, and what both ends' sockets take in before the end is noticed.
  EXPECT_LT(num_sent, 32 << 20);
}

TEST_F(HubFailures, AnAnswerThatDripsIsGivenUpAndNotAskedForAgain) {
  settings_.patience.answer = milliseconds(60);
  for (const char* start : {"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{", "HTTP/1.1 200 OK\r\nX-Words: "}) {
    const ScriptedServer server([&](const ScriptedAnswer& answer, int) {
      answer.send(start);
      answer.drip(milliseconds(1));
    });
    const std::string error = list_error(server);
    EXPECT_TRUE(error.starts_with("HubError: ")) << error;
    expect_part(error, "fewer than 64.0 KiB a second are no answer");
    EXPECT_EQ(server.num_requests(), 1);
  }
}

TEST_F(HubFailures, HeadersAndErrorsWithoutEndAreNotRead) {
  for (const char* start : {"HTTP/1.1 200 OK\r\n", "HTTP/1.1 404 No\r\n\r\n"}) {
    std::atomic<int64_t> num_sent{0};
    const ScriptedServer server([&](const ScriptedAnswer& answer, int) {
      answer.send(start);
      const std::string piece = "x: " + std::string(4000, 'a') + "\r\n";
      while (num_sent < 64 << 20 && answer.send(piece)) num_sent += static_cast<int64_t>(piece.size());
    });
    EXPECT_NE(list_error(server), "");
    EXPECT_LT(num_sent, 32 << 20) << start;
  }
}

TEST_F(HubFailures, AnAnswerThatIsNoListIsTheHubsFault) {
  for (const std::string& body :
       {std::string("no JSON"), std::string("[]"), std::string("{}"), std::string(R"({"sha": "main", "siblings": []})"),
        hub_list("7"), hub_list("[7]"), hub_list(R"([{"rfilename": "../x"}])"), std::string(100'000, '[')}) {
    const ScriptedServer server([&](const ScriptedAnswer& answer, int) { answer.send_status(200, "", body); });
    const std::string error = list_error(server);
    EXPECT_TRUE(error.starts_with("HubError: fetch org/name: ")) << body.substr(0, 40) << ": " << error;
    EXPECT_EQ(server.num_requests(), 1);
  }
}

TEST_F(HubFailures, AFileWithoutProgressIsTriedFiveTimesAndWhatArrivedStays) {
  const std::pair<const char*, ScriptedServer::Script> cases[] = {
      {"the answer was 500", [](const ScriptedAnswer& answer, int) { answer.send_status(500); }},
      {"the answer was 429", [](const ScriptedAnswer& answer, int) { answer.send_status(429); }},
      {"position to go on from (416)", [](const ScriptedAnswer& answer, int) { answer.send_status(416); }},
      {"another part of the file",
       [](const ScriptedAnswer& answer, int) {
         answer.send_status(206, "Content-Range: bytes 7-599999/600000\r\n", "abc");
       }},
      {"the answer ended early", [](const ScriptedAnswer& answer, int) { answer.send("HTTP/1.0 200 OK\r\n\r\n"); }},
      // It takes the ranges that it is asked for, but never gets any further.
      {"/org/name/resolve/", [&](const ScriptedAnswer& answer, int) { send_rest(answer, content_, 100); }},
  };
  for (const auto& [reason, script] : cases) {
    lines_.clear();
    const ScriptedServer server(script);
    const std::string error = download_error(server);
    EXPECT_TRUE(error.starts_with("HubError: ")) << error;
    expect_part(error, reason);
    expect_part(error, "of 600000 bytes");
    EXPECT_EQ(server.num_requests(), 5) << reason;
    EXPECT_EQ(num_told(reason), 4) << reason;
    EXPECT_FALSE(fs::exists(blob_));
  }
  // The last case brought a hundred bytes five times.
  EXPECT_EQ(read_file(incomplete_), content_.substr(0, 500));
  const ScriptedServer mended([&](const ScriptedAnswer& answer, int) {
    EXPECT_EQ(answer.first_byte(), 500);
    send_rest(answer, content_);
  });
  EXPECT_EQ(download_error(mended), "");
  EXPECT_EQ(read_file(blob_), content_);
}

TEST_F(HubFailures, AStoreThatGivesAndForgetsIsGivenUp) {
  // Half of the file each time, and 416 where it is asked to go on: every second try looks like progress.
  const ScriptedServer server([&](const ScriptedAnswer& answer, int) {
    if (answer.first_byte() > 0) return answer.send_status(416);
    answer.send("HTTP/1.0 200 OK\r\n\r\n");
    answer.send(std::string_view(content_).substr(0, 300'000));
  });
  EXPECT_TRUE(download_error(server).starts_with("HubError: "));
  EXPECT_LE(server.num_requests(), 6);  // the first half is progress, then five tries are not
  EXPECT_FALSE(fs::exists(blob_));
}

TEST_F(HubFailures, AStoreThatCutsEveryAnswerButGetsAheadIsTriedOn) {
  const ScriptedServer server([&](const ScriptedAnswer& answer, int) { send_rest(answer, content_, 70'000); });
  EXPECT_EQ(download_error(server), "");
  EXPECT_EQ(server.num_requests(), 9);  // ⌈600 000 / 70 000⌉, more than the five tries without progress
  EXPECT_EQ(read_file(blob_), content_);
}

TEST_F(HubFailures, AFileOfAnotherSizeOrContentIsNotKept) {
  const std::pair<const char*, ScriptedServer::Script> cases[] = {
      {"300000 bytes are announced, the hub lists 600000",
       [&](const ScriptedAnswer& answer, int) { send_rest(answer, content_.substr(0, 300'000)); }},
      {"600004 bytes are announced, the hub lists 600000",
       [&](const ScriptedAnswer& answer, int) { send_rest(answer, content_ + "more"); }},
      {"more than 600000 bytes arrived",
       [&](const ScriptedAnswer& answer, int) {
         answer.send("HTTP/1.0 200 OK\r\n\r\n");
         while (answer.send(content_)) continue;
       }},
      {"SHA-256", [](const ScriptedAnswer& answer, int) { send_rest(answer, std::string(600'000, 'x')); }},
  };
  for (const auto& [reason, script] : cases) {
    const ScriptedServer server(script);
    const std::string error = download_error(server);
    EXPECT_TRUE(error.starts_with("HubError: ")) << error;
    expect_part(error, reason);
    expect_part(error, "nothing wrong was kept");
    EXPECT_EQ(server.num_requests(), 2) << reason;
    EXPECT_FALSE(fs::exists(blob_) || fs::exists(incomplete_)) << reason;
  }
}

TEST_F(HubFailures, AStopEndsATransferThatIsSilent) {
  settings_.patience.stall_timeout = std::chrono::minutes(10);
  const ScriptedServer server([&](const ScriptedAnswer& answer, int) {
    stop_ = true;
    answer.stay_silent();
  });
  const Stopwatch watch;
  EXPECT_EQ(download_error(server), "");
  EXPECT_LT(watch.elapsed_s(), 300);  // the stall would end it after ten minutes
  EXPECT_FALSE(fs::exists(blob_));
}

}  // namespace
}  // namespace megalith
