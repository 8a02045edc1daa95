-- Keys that were made before have the rate limit. Run as annals_owner.
ALTER TABLE annals.api_keys ADD COLUMN no_limit boolean NOT NULL DEFAULT false;
