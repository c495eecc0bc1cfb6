-- The tables of schema version 5, the first that later releases bring up to date. Never changed.
CREATE TABLE access_keys (id VARCHAR(12) NOT NULL, name VARCHAR(64) NOT NULL, scopes VARCHAR(64) NOT NULL, secret_sha256 VARCHAR(64) NOT NULL, created FLOAT NOT NULL, expires FLOAT NOT NULL, revoked FLOAT, open_jobs BIGINT, core_seconds_per_day BIGINT, kept_bytes BIGINT, PRIMARY KEY (id));
CREATE TABLE audit (seq BIGINT NOT NULL, time VARCHAR(32) NOT NULL, event VARCHAR(32) NOT NULL, actor VARCHAR(128) NOT NULL, request_id VARCHAR(64), subject VARCHAR(64), detail TEXT NOT NULL, hash VARCHAR(64) NOT NULL, PRIMARY KEY (seq));
CREATE TABLE charges (owner VARCHAR(128) NOT NULL, began FLOAT NOT NULL, core_seconds FLOAT NOT NULL);
CREATE INDEX charges_by_owner ON charges (owner, began);
CREATE TABLE holds (spec_digest VARCHAR(64) NOT NULL, owner VARCHAR(128) NOT NULL, since FLOAT NOT NULL, PRIMARY KEY (spec_digest, owner));
CREATE INDEX holds_by_owner ON holds (owner);
CREATE TABLE jobs (spec_digest VARCHAR(64) NOT NULL, workload VARCHAR(64) NOT NULL, owner VARCHAR(64) NOT NULL, request_id VARCHAR(64) NOT NULL, client_request_id VARCHAR(64) NOT NULL, spec TEXT NOT NULL, memory_mb INTEGER NOT NULL, threads INTEGER NOT NULL, attempts INTEGER NOT NULL, deaths INTEGER NOT NULL, seconds_limit FLOAT NOT NULL, lease FLOAT NOT NULL, seq BIGINT NOT NULL, turn BIGINT NOT NULL, state VARCHAR(9) NOT NULL, task VARCHAR(96) NOT NULL, progress TEXT, error TEXT, digest VARCHAR(64), submitted VARCHAR(27) NOT NULL, updated VARCHAR(27) NOT NULL, traceparent VARCHAR(55) NOT NULL, caller VARCHAR(128) NOT NULL, PRIMARY KEY (spec_digest));
CREATE INDEX jobs_by_state ON jobs (state, submitted, spec_digest);
CREATE INDEX jobs_by_time ON jobs (submitted, spec_digest);
CREATE INDEX jobs_by_turn ON jobs (state, caller, turn);
CREATE INDEX jobs_by_workload ON jobs (workload, submitted, spec_digest);
CREATE TABLE results (digest VARCHAR(64) NOT NULL, spec_digest VARCHAR(64) NOT NULL, workload VARCHAR(64) NOT NULL, bytes BIGINT NOT NULL, created VARCHAR(40) NOT NULL, submitted VARCHAR(40) NOT NULL, form VARCHAR(64), summary TEXT NOT NULL, standing VARCHAR(8) NOT NULL, PRIMARY KEY (digest));
CREATE INDEX results_by_form ON results (form);
CREATE INDEX results_by_spec ON results (spec_digest);
CREATE INDEX results_by_time ON results (standing, created, spec_digest);
CREATE INDEX results_by_workload ON results (standing, workload, created, spec_digest);
CREATE TABLE schema_version (version INTEGER NOT NULL, renewals BIGINT NOT NULL);
CREATE TABLE uploads (sha256 VARCHAR(64) NOT NULL, owner VARCHAR(128) NOT NULL, bytes BIGINT NOT NULL, since FLOAT NOT NULL, PRIMARY KEY (sha256, owner));
