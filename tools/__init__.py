"""What serves this repository alone: tables of its pages, the leaderboard, the coastline."""
