"""What is wrong, and how the service is doing: alarms and samples. Rules, refusals and samples are pure; gathering reads."""
