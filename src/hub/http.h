// HTTP over libcurl, one request at a time. Redirects are followed here, so a secret stays with its host.
//
// libcurl.so.4 is loaded with the first client. Proxies come from the environment (https_proxy, no_proxy).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith {

// No answer, or an incomplete one. Holds no query and no secret.
class HttpError : public std::runtime_error {
 public:
  HttpError(const std::string& message, bool is_transient) : std::runtime_error(message), is_transient_(is_transient) {}
  // The same request may soon succeed.
  bool is_transient() const { return is_transient_; }

 private:
  bool is_transient_;
};

struct HttpSettings {
  std::chrono::milliseconds connect_timeout{10'000};
  // Once connected, fewer bytes per second over stall_timeout count as no answer.
  std::chrono::milliseconds stall_timeout{10'000};
  int64_t stall_bytes_per_s = 1024;
  std::string ca_file;  // trusted instead of the system's
};

struct HttpRequest {
  std::string url;
  bool wants_body = true;  // else HEAD
  int64_t first_byte = 0;  // above 0: the rest from there
  std::string method;      // "": GET or HEAD
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::span<const std::byte> body = {};  // sent with PUT and POST; outlives send()
  bool wants_error_body = false;         // the sink also receives bodies of other statuses
  bool follows_redirects = true;         // else they are answers like others
  // `Authorization: Bearer`, only to hosts of secret_origin (scheme, name, port).
  std::string secret, secret_origin;
  // Called many times a second; true ends the request with an HttpError. May be empty.
  std::function<bool()> should_stop;
};

using HttpHeaders = std::map<std::string, std::string>;  // names are lower case

struct HttpResponse {
  int status = 0;
  HttpHeaders headers;         // of the last answer
  HttpHeaders origin_headers;  // of all answers from the host first asked; the latest wins
  std::string origin() const;  // of the host that answered
  std::string url;             // that answered; may be signed: not for messages

  // "" if missing.
  std::string header(std::string_view name) const;
  std::string origin_header(std::string_view name) const;
};

class HttpClient {
 public:
  // UserError without libcurl.
  explicit HttpClient(HttpSettings settings);
  ~HttpClient();
  HttpClient(HttpClient&&) noexcept;
  HttpClient& operator=(HttpClient&&) = delete;

  // Receives bodies of status 200 or 206. False ends the request without an error.
  using Sink = std::function<bool(const HttpResponse&, std::span<const std::byte>)>;

  // Returns the last answer, whatever its status; other bodies are dropped. A HEAD is not redirected to another host.
  // Throws HttpError, and what the sink throws. Refuses redirects from https to http, to other schemes, to nowhere or
  // without end, and endless headers.
  HttpResponse send(const HttpRequest& request, const Sink& sink = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace megalith
