// Addresses and credentials of S3-compatible object storage, from the variables and files of AWS's own tools.
// Source: AWS SDKs and Tools Reference Guide, "Configuration and authentication"; botocore 1.44.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "config/yaml_document.h"

namespace megalith {

struct S3Url {
  std::string bucket, prefix;  // "run/checkpoints": without slashes at its ends; "" for the whole bucket

  std::string text() const;                      // "s3://bucket/run/checkpoints"
  std::string key(std::string_view name) const;  // prefix/name, or prefix
};

bool is_object_url(std::string_view text);
// UserError for a name that no bucket or object can have.
S3Url parse_object_url(std::string_view text);

// Limits of a request and its tries; tests lower them.
struct S3Patience {
  std::chrono::milliseconds connect_timeout{10'000}, stall_timeout{10'000};
  std::chrono::milliseconds first_pause{200}, most_pause{10'000};  // between tries; doubles
  int most_tries = 10;                                             // AWS_MAX_ATTEMPTS
};

// No message, log or file may hold secret_key or session_token.
struct S3Settings {
  std::string endpoint;  // "https://s3.eu-west-1.amazonaws.com"
  bool is_path_style = false;
  std::string region = "us-east-1";
  std::string access_key, secret_key, session_token;
  std::string credentials_source;  // "AWS_ACCESS_KEY_ID", "profile default of /home/me/.aws/credentials"
  std::string ca_file;             // AWS_CA_BUNDLE
  S3Patience patience;
};

// UserError: no credentials, a source of them that is not read here, malformed values.
S3Settings read_s3_settings(const EnvironmentMap& environment);

}  // namespace megalith
