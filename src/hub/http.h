// HTTP over libcurl: one request at a time, redirects followed here so that a secret stays with the host it is for.
//
// The library is loaded when the first client is made (libcurl.so.4, whichever TLS it was built with), so the program
// starts on machines that have none. Proxies are those of the environment (https_proxy, no_proxy).
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

namespace megalith {

// No answer, or only a part of one. The message holds no query and no secret.
class HttpError : public std::runtime_error {
 public:
  HttpError(const std::string& message, bool is_transient) : std::runtime_error(message), is_transient_(is_transient) {}
  // Whether the same request may succeed a moment later.
  bool is_transient() const { return is_transient_; }

 private:
  bool is_transient_;
};

struct HttpSettings {
  std::chrono::milliseconds connect_timeout{10'000};
  // Once connected, this many bytes a second have to arrive over each stall_timeout: a slower answer counts as no
  // answer.
  std::chrono::milliseconds stall_timeout{10'000};
  int64_t stall_bytes_per_s = 1024;
  std::string ca_file;  // certificates to trust instead of the system's
};

struct HttpRequest {
  std::string url;
  bool wants_body = true;  // else HEAD
  int64_t first_byte = 0;  // above 0: asks for the rest from there
  // Sent as `Authorization: Bearer`, only to hosts of secret_origin (scheme, name and port).
  std::string secret, secret_origin;
  // Asked many times a second; true ends the request with an HttpError. May be empty.
  std::function<bool()> should_stop;
};

using HttpHeaders = std::map<std::string, std::string>;  // names in lower case

struct HttpResponse {
  int status = 0;
  HttpHeaders headers;         // of the last answer
  HttpHeaders origin_headers;  // of the answers from the host that was asked, redirects included; the latest wins
  std::string origin() const;  // of the host that answered
  std::string url;             // that answered; may be signed, so it is not for messages

  // A header of the last answer, or "".
  std::string header(std::string_view name) const;
  std::string origin_header(std::string_view name) const;
};

// "https://host:443" in lower case, the port always there; "" when the text is no http or https URL.
std::string url_origin(std::string_view url);

// A URL as messages may show it: without user, password, query and fragment.
std::string shown_url(std::string_view url);

// Bytes as a part of a URL's path: what is not a letter, a digit or one of "-._~" and `kept` becomes %XX.
std::string percent_encoded(std::string_view text, std::string_view kept = "");

class HttpClient {
 public:
  // UserError when libcurl cannot be loaded.
  explicit HttpClient(HttpSettings settings);
  ~HttpClient();
  HttpClient(HttpClient&&) noexcept;
  HttpClient& operator=(HttpClient&&) = delete;

  // Receives bytes of a body with status 200 or 206. Returning false ends the request early, without an error.
  using Sink = std::function<bool(const HttpResponse&, std::span<const std::byte>)>;

  // The last answer after redirects, whatever its status; other bodies are dropped. A HEAD is not sent on to another
  // host: the redirect itself is the answer. Throws HttpError, and what the sink throws. Redirects from https to http,
  // to another scheme, to nowhere and without end are refused, and so are headers without end.
  HttpResponse send(const HttpRequest& request, const Sink& sink = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace megalith
