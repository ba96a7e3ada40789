CREATE MATERIALIZED VIEW gold_tools
COMMENT 'How often each tool is called, and how often it fails'
AS SELECT
  tool,
  count_if(type = 'tool_call') AS calls,
  count_if(type = 'tool_error') AS failures
FROM silver_events
WHERE tool IS NOT NULL
GROUP BY tool
